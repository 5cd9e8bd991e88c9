"""The element types of GGUF files and their dequantisation.

The definition of every format here; knows no other room.
"""
