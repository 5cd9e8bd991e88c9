"""What attention kernels share: capped scores, activations of heads, sums over the parts of a row."""

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
    """Write heads as activations: x float32 [ROWS, DIM], place int64 and inside bool [ROWS]."""
    rows: tl.constexpr = x.shape[0]
    dim: tl.constexpr = x.shape[1]
    d = tl.arange(0, dim)
    y = x.to(tl.float16)
    kept = inside[:, None] & (d < HEAD_DIM)[None, :]
    tl.store(out + place[:, None] * HEAD_DIM + d[None, :], y, mask=kept)
    total = tl.sum(tl.reshape(y.to(tl.float32), (rows, dim // WIDTH, WIDTH)), axis=2)
    group = tl.arange(0, dim // WIDTH)
    kept = inside[:, None] & (group < HEAD_DIM // WIDTH)[None, :]
    tl.store(sums + place[:, None] * (HEAD_DIM // WIDTH) + group[None, :], total, mask=kept)


@triton.jit
def combine_parts(
    parts: tl.tensor,
    tops: tl.tensor,
    sinks: tl.tensor,
    out: tl.tensor,
    sums: tl.tensor,
    item: tl.tensor,
    count: tl.tensor,
    head: tl.tensor,
    place: tl.tensor,
    KV_HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    SINKS: tl.constexpr,
    SPLITS: tl.constexpr,
    STEP: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Add up the parts of `count` items from `item` on, in their order, STEP at once, and write the heads."""
    group = tl.arange(0, ROWS)
    d = tl.arange(0, DIM)
    split = tl.arange(0, SPLITS)
    first = (item.to(tl.int64) * KV_HEADS + head) * GROUPS
    row = first + split[:, None] * (KV_HEADS * GROUPS) + group[None, :]
    there = (split < count)[:, None] & (group < GROUPS)[None, :]
    top = tl.load(tops + row * 2, mask=there, other=NO_SCORE, cache_modifier=".cg")
    total = tl.load(tops + row * 2 + 1, mask=there, other=0.0, cache_modifier=".cg")
    highest = tl.max(top, axis=0)
    if SINKS:
        sink = tl.load(sinks + head * GROUPS + group, mask=group < GROUPS, other=0.0) * LOG2_E
        highest = tl.maximum(highest, sink)
    divisor = tl.sum(tl.exp2(top - highest[None, :]) * total, axis=0)
    if SINKS:
        divisor += tl.exp2(sink - highest)
    step = tl.arange(0, STEP)
    y = tl.zeros((ROWS, DIM), tl.float32)
    for start in range(0, count, STEP):
        added = first + (start + step)[:, None] * (KV_HEADS * GROUPS) + group[None, :]
        kept = (start + step < count)[:, None] & (group < GROUPS)[None, :]
        height = tl.load(tops + added * 2, mask=kept, other=NO_SCORE, cache_modifier=".cg")
        part = tl.load(
            parts + added[:, :, None] * HEAD_DIM + d[None, None, :],
            mask=kept[:, :, None] & (d < HEAD_DIM)[None, None, :],
            other=0.0,
            cache_modifier=".cg",
        )
        y += tl.sum(part * tl.exp2(height - highest[None, :])[:, :, None], axis=0)
    y = y / tl.where(group < GROUPS, divisor, 1.0)[:, None]
    write_heads(y, out, sums, place + group, group < GROUPS, HEAD_DIM, WIDTH)
