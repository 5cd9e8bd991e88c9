"""Paged KV memory on a device: how pages are laid out, and memory that grows and shrinks under them.

Knows cuda; no attention, which reads it.
"""
