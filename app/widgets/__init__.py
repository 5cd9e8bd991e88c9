"""Widgets around the transcript, one file each with its stylesheet beside it, and what they show.

A widget draws what it is given; it knows no engine and no history.
"""
