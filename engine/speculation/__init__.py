"""Prompt-lookup drafts, and how many of them pay.

Knows plans, the cost model and the sizes of passes, never the scheduler itself; no torch.
"""
