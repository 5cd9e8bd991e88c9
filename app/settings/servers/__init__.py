"""Servers that the settings name, a section each."""
