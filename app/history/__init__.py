"""Chats on disk: one SQLite database, its schema, search, and what it says when it is locked or damaged.

Knows conversations and settings; no widgets.
"""
