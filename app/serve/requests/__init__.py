"""From a request of any protocol to sequences of the engine, and back to the pieces of its answers.

Knows chat and models below it, and of HTTP only what a refusal is.
"""
