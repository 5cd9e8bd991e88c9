"""Weights of the processor's, brought to a GPU piece by piece for passes that read many tokens there.

Host memory holds them once, as the processor's kernels read them; the GPU repacks what has arrived. Knows
both sides' weights.
"""
