"""Layers of many experts on a GPU: who uses which expert, and products over (token, expert) pairs.

A pair is a token and one of its experts; those of one expert stand side by side, so that its weights are
read once for all of them. Nothing here depends on how many tokens chose an expert: grids are fixed by the
number of pairs, and surplus programs leave at once.
"""
