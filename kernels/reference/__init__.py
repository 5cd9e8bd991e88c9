"""Every operation in plain torch: the definition that the other implementations are held to.

Runs on any device. Knows contract, quant and, for the speed of copies to a GPU, cuda.
"""
