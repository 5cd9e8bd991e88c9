"""The app's way to the engine: loading models in the background, and which files there are.

Knows settings and the engine's public face; no chats, no widgets.
"""
