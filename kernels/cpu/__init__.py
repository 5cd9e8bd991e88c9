"""What a processor runs beside torch: LLVM kernels for quantised weights, norms and decode attention.

Knows contract, quant and reference, whose results it must give.
"""
