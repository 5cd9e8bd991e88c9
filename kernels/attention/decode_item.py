"""An item of decode attention: some blocks of one row and KV head, and where its result goes."""

import triton
import triton.language as tl

from kernels.attention.softmax_parts import LOG2_E, NO_SCORE, capped, write_heads
from kernels.kv.tiles import load_tile


@triton.jit
def attend_blocks(
    queries: tl.tensor,
    top: tl.tensor,
    total: tl.tensor,
    acc: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    table: tl.tensor,
    block: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    context: tl.tensor,
    written: tl.tensor,
    head: tl.tensor,
    block_stride: tl.tensor,
    scale_stride: tl.tensor,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    QUANTIZED: tl.constexpr,
    FAST: tl.constexpr,
) -> tuple:
    """Online softmax over blocks [first, end), of which `block` is the first; `written` slots count.

    queries float16 [DIM, n]; → top and total float32 [n], acc float32 [DIM, n].
    """
    plane: tl.constexpr = KV_HEADS * BLOCK_SIZE * HEAD_DIM
    slot = tl.arange(0, BLOCK_SIZE)
    # Kept by key until the end: a sum over keys crosses the program's threads.
    totals = tl.zeros((BLOCK_SIZE, queries.shape[1]), tl.float32)
    for tile in range(first, end):
        page = block.to(tl.int64) * block_stride + head * (BLOCK_SIZE * HEAD_DIM)
        scale_page = block.to(tl.int64) * scale_stride + head * (BLOCK_SIZE * (HEAD_DIM // 32))
        # One step ahead, so that the next tile's address does not wait for memory.
        block = tl.load(table + tile + 1, mask=tile + 1 < end, other=0)
        position = tile * BLOCK_SIZE + slot
        seen = position < written
        if WINDOW > 0:
            seen = seen & (position >= context - WINDOW)
        key = load_tile(
            values, scales, page, scale_page, position >= 0,
            HEAD_DIM, DIM, BLOCK_SIZE, QUANTIZED, False, False, FAST,
        )  # fmt: skip
        value = load_tile(
            values, scales, page + plane, scale_page + plane // 32, position < written,
            HEAD_DIM, DIM, BLOCK_SIZE, QUANTIZED, True, True, FAST,
        )  # fmt: skip
        scores = tl.where(seen[:, None], capped(tl.dot(key, queries), CAP), NO_SCORE)
        highest = tl.maximum(top, tl.max(scores, axis=0))
        fade = tl.exp2(top - highest)
        weight = tl.exp2(scores - highest[None, :])
        total = total * fade
        totals = totals * fade[None, :] + weight
        acc = tl.dot(value, weight.to(tl.float16), acc * fade[None, :])
        top = highest
    return top, total + tl.sum(totals, axis=0), acc


@triton.jit
def write_whole(
    top: tl.tensor,
    total: tl.tensor,
    acc: tl.tensor,
    sinks: tl.tensor,
    out: tl.tensor,
    sums: tl.tensor,
    head: tl.tensor,
    place: tl.tensor,
    GROUPS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    SINKS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """The result of a row that is one item; `place` is its first query head in the output."""
    column = tl.arange(0, COLUMNS)
    real = column < GROUPS
    if SINKS:
        sink = tl.load(sinks + head * GROUPS + column, mask=real, other=0.0) * LOG2_E
        highest = tl.maximum(top, sink)
        total = total * tl.exp2(top - highest) + tl.exp2(sink - highest)
        acc = acc * tl.exp2(top - highest)[None, :]
    acc = acc / tl.where(total > 0, total, 1.0)[None, :]
    write_heads(tl.trans(acc), out, sums, place + column, real, HEAD_DIM, WIDTH)


@triton.jit
def store_part(
    top: tl.tensor,
    total: tl.tensor,
    acc: tl.tensor,
    parts: tl.tensor,
    tops: tl.tensor,
    counter: tl.tensor,
    item: tl.tensor,
    head: tl.tensor,
    KV_HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """An item's share of a row, for whoever adds the shares up; → how many items came before it."""
    column = tl.arange(0, COLUMNS)
    real = column < GROUPS
    d = tl.arange(0, DIM)
    part = (item.to(tl.int64) * KV_HEADS + head) * GROUPS + column
    kept = real[:, None] & (d < HEAD_DIM)[None, :]
    tl.store(parts + part[:, None] * HEAD_DIM + d[None, :], tl.trans(acc), mask=kept)
    tl.store(tops + part * 2, top, mask=real)
    tl.store(tops + part * 2 + 1, total, mask=real)
    # All threads' parts must be written before one of them counts this item as done.
    tl.debug_barrier()
    return tl.atomic_add(counter, 1, sem="acq_rel")
