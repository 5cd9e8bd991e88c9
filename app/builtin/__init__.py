"""The model that ships with the program, and its card: data that `models` finds.

No code; knows nothing.
"""
