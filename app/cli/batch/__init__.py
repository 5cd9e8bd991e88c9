"""`tui-chat batch`: many prompts of a file, answered together, with results that a later run goes on from.

Reads and writes lines of JSON; answers come through the same engine and by the same rules as those of chats.
"""
