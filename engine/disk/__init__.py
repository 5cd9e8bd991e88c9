"""KV of chats in files, so that it outlives the program: their format, and the folder with its limit.

Knows bytes, token ids and digests, not memory and not models; imports api alone and no torch.
"""
