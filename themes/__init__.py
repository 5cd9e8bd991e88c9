"""Colour themes as data files."""
