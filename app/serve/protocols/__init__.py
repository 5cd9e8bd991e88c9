"""One module a protocol: what its requests mean in the engine's words, and how answers look in it.

Knows the rooms beside it; none of its modules knows another but for what they share.
"""
