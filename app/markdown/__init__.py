"""Markdown that streams: closed lines are frozen and rendered once, only the tail is rendered again."""
