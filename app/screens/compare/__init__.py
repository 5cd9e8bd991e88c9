"""Answers beside each other: the alternatives to one message in columns, and two chats turn by turn.

Knows sessions and what is shown of messages, and no other screen.
"""
