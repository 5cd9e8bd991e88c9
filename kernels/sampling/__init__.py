"""From logits to tokens on a GPU: edits, candidates, search for what is kept, the draw.

What it computes is defined by `kernels.reference.sampler`. Knows state and that definition's constants.
Rows that a few best tokens do not decide have draws of their own (`draw_by_id`, `search`, `histogram`,
`histogram_ranges`): without them a tick of one such row would sort the whole vocabulary.
"""
