"""What attention kernels share: capped scores, activations of heads, sums over a row's KV splits."""

import triton
import triton.language as tl

NO_SCORE = tl.constexpr(-1.0e30)
"""Where a running maximum starts: with -inf a fully masked tile would give NaN."""

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def capped(scores: tl.tensor, CAP: tl.constexpr) -> tl.tensor:
    """CAP · tanh(scores / CAP), where CAP is not 0."""
    if CAP > 0:
        scores = CAP - 2.0 * CAP / (tl.exp2(scores * (2.0 * LOG2_E / CAP)) + 1.0)
    return scores


@triton.jit
def write_heads(
    x: tl.tensor,
    out: tl.tensor,
    sums: tl.tensor,
    place: tl.tensor,
    inside: tl.tensor,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Write heads as activations: x float32 [ROWS, DIM], place int64 and inside bool [ROWS].

    Sums are left to `add_sums` where a head is no whole number of them.
    """
    rows: tl.constexpr = x.shape[0]
    dim: tl.constexpr = x.shape[1]
    d = tl.arange(0, dim)
    y = x.to(tl.float16)
    kept = inside[:, None] & (d < HEAD_DIM)[None, :]
    tl.store(out + place[:, None] * HEAD_DIM + d[None, :], y, mask=kept)
    if HEAD_DIM % WIDTH == 0:
        total = tl.sum(tl.reshape(y.to(tl.float32), (rows, dim // WIDTH, WIDTH)), axis=2)
        group = tl.arange(0, dim // WIDTH)
        kept = inside[:, None] & (group < HEAD_DIM // WIDTH)[None, :]
        tl.store(sums + place[:, None] * (HEAD_DIM // WIDTH) + group[None, :], total, mask=kept)


@triton.jit
def combine_partials(
    partials: tl.tensor,
    row_stats: tl.tensor,
    sinks: tl.tensor,
    out: tl.tensor,
    sums: tl.tensor,
    first_split: tl.tensor,
    count: tl.tensor,
    head: tl.tensor,
    place: tl.tensor,
    KV_HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    SINKS: tl.constexpr,
    STEP: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Add up the partial results of `count` splits in order, STEP at once, and write the heads."""
    group = tl.arange(0, ROWS)
    d = tl.arange(0, DIM)
    real = group < GROUPS
    row = (first_split.to(tl.int64) * KV_HEADS + head) * GROUPS + group
    # A thread adds up its own values over all splits: sums across threads would take longer than all else.
    # Loads go past the L1, which may hold what others wrote since.
    all_max = tl.full((ROWS,), NO_SCORE, tl.float32)
    if SINKS:
        sink = tl.load(sinks + head * GROUPS + group, mask=real, other=0.0) * LOG2_E
        all_max = tl.maximum(all_max, sink)
    divisor = tl.zeros((ROWS,), tl.float32)
    if SINKS:
        divisor += 1.0
    y = tl.zeros((ROWS, DIM), tl.float32)
    step = tl.arange(0, STEP)
    for start in range(0, count, STEP):
        added = row[:, None] + (start + step)[None, :] * (KV_HEADS * GROUPS)
        kept = real[:, None] & (start + step < count)[None, :]
        inside = kept[:, :, None] & (d < HEAD_DIM)[None, None, :]
        place_in = partials + added[:, :, None] * HEAD_DIM + d[None, None, :]
        partial = tl.load(place_in, mask=inside, other=0.0, cache_modifier=".cg")
        row_max = tl.load(row_stats + added * 2, mask=kept, other=NO_SCORE, cache_modifier=".cg")
        row_sum = tl.load(row_stats + added * 2 + 1, mask=kept, other=0.0, cache_modifier=".cg")
        before = all_max
        all_max = tl.maximum(all_max, tl.max(row_max, axis=1))
        rescale = tl.exp2(before - all_max)
        weight = tl.exp2(row_max - all_max[:, None])
        divisor = divisor * rescale + tl.sum(weight * row_sum, axis=1)
        y = y * rescale[:, None] + tl.sum(partial * weight[:, :, None], axis=1)
    y = y / tl.where(real, divisor, 1.0)[:, None]
    write_heads(y, out, sums, place + group, real, HEAD_DIM, WIDTH)
