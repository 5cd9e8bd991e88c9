"""What fills the window or lies over it: the chat screen, and dialogs; and what they are handed.

The chat screen opens dialogs, which know nothing of it; both know the rooms below, not the window.
"""
