"""Functions that models may call: calls in what they write, and the servers that run them.

A server is a program of the person's, named in the settings, that speaks the Model Context Protocol over
its standard input and output. Knows no chat and no screen.
"""
