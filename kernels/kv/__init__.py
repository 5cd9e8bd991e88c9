"""Paged KV memory on a device: how pages are laid out, and memory that grows and shrinks under them.

Knows no other room, not even attention, which reads it.
"""
