"""Several devices at once: an `Engine` for each, behind the port of one.

Chooses the device of a model and sums up what engines say; knows the facade and all that it knows.
"""
