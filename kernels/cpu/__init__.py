"""What a processor runs beside torch: kernels built with LLVM for coded weights, norms and decode attention.

Knows contract, quant and reference, whose results it must give.
"""
