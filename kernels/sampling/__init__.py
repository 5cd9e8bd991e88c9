"""From logits to tokens on a GPU: edits, candidates, search for what is kept, the draw.

What it computes is defined by `kernels.reference.sampler`. Knows state.
"""
