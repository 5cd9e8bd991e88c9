"""The GPU's layout of quantised weights: repacking, reading fields, dequantising, embedding rows.

Lossless: every weight can be had back. Knows quant and cuda; no product, which reads it.
"""
