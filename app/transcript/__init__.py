"""The visible chat: a view of the last screenfuls in which only the tail is laid out again.

Knows markdown alone: messages are handed to it as `MessageView`s, text as it comes.
"""
