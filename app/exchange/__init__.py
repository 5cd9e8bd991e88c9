"""Chats out of the app and into it: files of its own, for readers, and those of other programs.

Knows conversations; nothing of the history that keeps them, and no widgets.
"""
