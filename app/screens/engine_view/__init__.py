"""The engine view: a screen of its own that shows every KV block, the last ticks and what each chat costs.

It asks the engine for a close look while it is open, and knows chats and widgets, not the chat screen.
"""
