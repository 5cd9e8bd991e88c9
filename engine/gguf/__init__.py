"""GGUF files: header, tensors, split files, and the checks that keep hostile ones out.

Reads what may be damaged or made to deceive, so every size is checked before it is used. Knows api alone.
"""
