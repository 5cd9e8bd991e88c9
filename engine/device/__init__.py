"""What is asked of a device besides computing: memory, streams, faults, pinned host memory, advice.

Knows api and the kernels, no model and no sequence.
"""
