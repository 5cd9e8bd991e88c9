"""Several devices at once: an `Engine` for each, behind the port of one.

Knows the facade and what it says; which device a model goes to, and what all of them say together.
"""
