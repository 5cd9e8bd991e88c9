"""The chat screen around the message being written: its actions, completions and what it will cost."""
