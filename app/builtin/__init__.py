"""The model that ships with the program, and its card."""
