"""Markdown that streams: closed lines are frozen and rendered once, only the tail is rendered again.

From source text to lines of styled runs, without a widget; knows no other room.
"""
