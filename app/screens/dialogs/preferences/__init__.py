"""Dialogs over the app's own settings: all of them in one list, and themes with a preview.

May know the settings and what dialogs share; what a change does is the caller's business.
"""
