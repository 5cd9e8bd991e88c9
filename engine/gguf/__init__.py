"""GGUF files: header, tensors, and the checks that keep hostile files out."""
