"""The visible chat: a view of the last screenfuls in which only the tail is laid out again.

Knows markdown and chat; the engine's texts reach it through sessions.
"""
