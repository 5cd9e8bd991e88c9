"""Model configuration, what architectures differ in as data, weights, and the one decoder body.

Knows gguf, api and the kernels; no sequence and no scheduler.
"""
