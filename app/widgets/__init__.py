"""Widgets around the transcript, one file each with its stylesheet beside it, and what they show.

A widget draws what it is given; `contents` makes that of sessions and the engine's numbers. No history.
"""
