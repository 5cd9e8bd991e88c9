"""From constraints to the tokens that may come next: grammars, a vocabulary for them, a matcher a sequence.

Masks are computed beside the engine's thread. Knows tokenizers, and of a device nothing.
"""
