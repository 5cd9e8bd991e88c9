"""Prompt-lookup drafts, and how many of them pay.

Knows the scheduler's plan and cost model; no torch.
"""
