"""Every operation in plain torch: the definition that the other implementations are held to.

Runs on any device. Knows contract and quant.
"""
