"""KV of chats between a device and files: saved after a sequence has ended, back before one begins."""
