"""Attention over paged KV: rotation and append, decode with KV splits, packed prefill.

Knows contract, kv and the numbers of a pass; no model and no sequence.
"""
