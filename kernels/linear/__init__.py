"""Products with quantised weights, for few rows, tiles and many rows, with the norms and gates around them.

Knows planes, the layout of weights on a GPU, and cuda.
"""
