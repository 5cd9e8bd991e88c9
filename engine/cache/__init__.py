"""Who holds which KV block: block manager, prefix cache, byte budget, and what is offloaded to host memory.

Knows numbers, not memory and not sequences; imports api alone and no torch.
"""
