"""The model picker, the card of a model, and the plan that a load is asked for with."""
