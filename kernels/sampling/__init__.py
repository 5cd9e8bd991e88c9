"""From logits to tokens on a GPU: edits, candidates, search for what is kept, the draw.

What it computes is defined by `kernels.reference.sampler`. Knows state and that definition's constants.
Rows that a few best tokens do not decide have draws of their own (`draw_by_id`, `search`, `histogram`,
`histogram_ranges`): without them such a tick would sort the vocabulary, which takes an H200 0.72 ms for 32
rows of 152 k tokens, sums included, instead of 0.02 to 0.06.
"""
