"""Modal dialogs, one file each with its stylesheet beside it.

Know what they show, not the screen that asks.
"""
