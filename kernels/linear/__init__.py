"""Products with quantised weights, for few rows, tiles and many rows, with the norms and gates around them.

Knows contract, planes (the layout of weights on a GPU), quant and cuda; no attention and no KV.
"""
