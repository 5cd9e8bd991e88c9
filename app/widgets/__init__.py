"""Widgets, one file each with its stylesheet beside it."""
