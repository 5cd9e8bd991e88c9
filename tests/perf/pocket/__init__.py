"""How the built-in model is taught to answer questions on the program, in whatever words."""
