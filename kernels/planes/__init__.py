"""The GPU's layout of quantised weights: repacking, reading fields, dequantising, embedding rows.

Knows quant alone; lossless, so a file's numbers can always be had back.
"""
