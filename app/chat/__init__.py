"""Conversations and what happens to them: nodes, session, draft, pump of text.

Plain data that any screen may show and history keeps; knows models and settings, no widgets and no Textual.
"""
