"""Torch in place of the kernels that do not serve a model, operation by operation.

It reads and writes what the kernels do (planes, pages, activations), so that both stand in one pass. May
know all kernels of a GPU.
"""
