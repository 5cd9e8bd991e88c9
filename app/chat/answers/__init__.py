"""Answers while they are written: one, several side by side, one that goes on; and their branches.

Knows conversations and the engine's port, no session and no widget.
"""
