"""Attention over paged KV: rotation and append, decode with KV splits, packed prefill.

Knows contract, cuda and kv; no model and no sequence.
"""
