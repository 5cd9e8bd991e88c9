"""Chats that are answered elsewhere: models behind servers that speak OpenAI's protocol.

The one room that speaks HTTP to them, on a thread of its own, so that no other tab ever waits.
"""
