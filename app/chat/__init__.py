"""Conversations and what happens to them: nodes, session, draft, pump of text. No widgets.

Plain data that any screen may show; knows models and settings, no Textual.
"""
