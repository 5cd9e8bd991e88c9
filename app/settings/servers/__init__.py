"""Servers that the settings name: endpoints that answer chats, and programs whose tools models may call."""
