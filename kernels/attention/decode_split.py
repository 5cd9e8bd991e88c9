"""A KV split of decode attention: some blocks of one row and KV head, and where its result goes."""

import triton
import triton.language as tl

from kernels.attention.softmax import LOG2_E, NO_SCORE, capped, combine_partials, write_heads
from kernels.kv.tiles import load_tile, product


@triton.jit
def load_split(fields: tl.tensor) -> tl.tuple:
    """All fields of a split but the first, see `SPLIT_FIELDS`."""
    first_split, count, first = tl.load(fields + 1), tl.load(fields + 2), tl.load(fields + 3)
    end, context = tl.load(fields + 4), tl.load(fields + 5)
    return first_split, count, first, end, context, tl.load(fields + 6), tl.load(fields + 7)


@triton.jit
def load_both(
    values: tl.tensor,
    scales: tl.tensor,
    block: tl.tensor,
    tile: tl.tensor,
    written: tl.tensor,
    head: tl.tensor,
    block_stride: tl.tensor,
    scale_stride: tl.tensor,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    QUANTIZED: tl.constexpr,
    FAST: tl.constexpr,
) -> tl.tuple:
    """Keys [TILE, DIM] and values [DIM, TILE] of a tile of a block; values beyond `written` are 0."""
    plane: tl.constexpr = KV_HEADS * BLOCK_SIZE
    groups: tl.constexpr = (HEAD_DIM + 31) // 32
    parts: tl.constexpr = BLOCK_SIZE // TILE
    start = head * BLOCK_SIZE + tile % parts * TILE
    page = block.to(tl.int64) * block_stride + start * HEAD_DIM
    scale_page = block.to(tl.int64) * scale_stride + start * groups
    position = tile * TILE + tl.arange(0, TILE)
    key = load_tile(
        values, scales, page, scale_page, position >= 0,
        HEAD_DIM, DIM, TILE, QUANTIZED, False, False, FAST,
    )  # fmt: skip
    value = load_tile(
        values, scales, page + plane * HEAD_DIM, scale_page + plane * groups, position < written,
        HEAD_DIM, DIM, TILE, QUANTIZED, True, True, FAST,
    )  # fmt: skip
    return key, value


@triton.jit
def _attend_tile(
    queries: tl.tensor,
    row_max: tl.tensor,
    row_sum: tl.tensor,
    row_sums: tl.tensor,
    acc: tl.tensor,
    both: tl.tuple,
    tile: tl.tensor,
    context: tl.tensor,
    written: tl.tensor,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    FAST: tl.constexpr,
) -> tl.tuple:
    """One step of the online softmax, over the keys and values of `both`."""
    key, value = both
    position = tile * TILE + tl.arange(0, TILE)
    seen = position < written
    if WINDOW > 0:
        seen = seen & (position >= context - WINDOW)
    scores = tl.where(seen[:, None], capped(product(key, queries, None, FAST), CAP), NO_SCORE)
    new_max = tl.maximum(row_max, tl.max(scores, axis=0))
    rescale = tl.exp2(row_max - new_max)
    weight = tl.exp2(scores - new_max[None, :])
    row_sum = row_sum * rescale
    row_sums = row_sums * rescale[None, :] + weight
    acc = product(value, weight.to(value.dtype), acc * rescale[None, :], FAST)
    return new_max, row_sum, row_sums, acc


@triton.jit
def attend_blocks(
    queries: tl.tensor,
    row_max: tl.tensor,
    row_sum: tl.tensor,
    acc: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    table: tl.tensor,
    block: tl.tensor,
    following: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    context: tl.tensor,
    written: tl.tensor,
    head: tl.tensor,
    block_stride: tl.tensor,
    scale_stride: tl.tensor,
    held: tl.tuple,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    QUANTIZED: tl.constexpr,
    FAST: tl.constexpr,
    HELD: tl.constexpr,
) -> tuple:
    """Online softmax over blocks [first, end), TILE slots at a time, of which `written` count.

    block, following: the pages of the first two; held: with HELD the first tile's keys and values.
    queries [DIM, n] of the tiles' type; → row_max and row_sum float32 [n], acc float32 [DIM, n].
    """
    parts: tl.constexpr = BLOCK_SIZE // TILE
    # Kept by key until the end: a sum over keys crosses the program's threads.
    row_sums = tl.zeros((TILE, queries.shape[1]), tl.float32)
    start = first * parts
    if parts > 1:
        following = block
    if HELD:
        row_max, row_sum, row_sums, acc = _attend_tile(
            queries, row_max, row_sum, row_sums, acc, held, start, context, written, TILE, WINDOW, CAP, FAST
        )
        block = following
        start += 1
    for tile in range(start, end * parts):
        both = load_both(
            values,
            scales,
            block,
            tile,
            written,
            head,
            block_stride,
            scale_stride,
            KV_HEADS,
            HEAD_DIM,
            DIM,
            BLOCK_SIZE,
            TILE,
            QUANTIZED,
            FAST,
        )
        # One step ahead, so that the next tile's address does not wait for memory.
        unknown = (tile > first * parts) & (tile + 1 < end * parts)
        block = tl.load(table + (tile + 1) // parts, mask=unknown, other=following)
        row_max, row_sum, row_sums, acc = _attend_tile(
            queries, row_max, row_sum, row_sums, acc, both, tile, context, written, TILE, WINDOW, CAP, FAST
        )
    return row_max, row_sum + tl.sum(row_sums, axis=0), acc


@triton.jit
def finish_split(
    row_max: tl.tensor,
    row_sum: tl.tensor,
    acc: tl.tensor,
    partials: tl.tensor,
    row_stats: tl.tensor,
    counter: tl.tensor,
    sinks: tl.tensor,
    out: tl.tensor,
    sums: tl.tensor,
    split: tl.tensor,
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
    """The row's result where it is one split, or this split's part of it; the last one adds them all up."""
    if count == 1:
        _write_unsplit(row_max, row_sum, acc, sinks, out, sums, head, place, GROUPS, HEAD_DIM, SINKS, WIDTH)
    else:
        earlier = _store_partial(
            row_max, row_sum, acc, partials, row_stats, counter, split, head, KV_HEADS, GROUPS, HEAD_DIM
        )
        if earlier == count - 1:
            tl.store(counter, 0)
            combine_partials(
                partials, row_stats, sinks, out, sums, first_split, count, head, place,
                KV_HEADS, GROUPS, HEAD_DIM, DIM, SINKS, STEP, ROWS, WIDTH,
            )  # fmt: skip


@triton.jit
def _write_unsplit(
    row_max: tl.tensor,
    row_sum: tl.tensor,
    acc: tl.tensor,
    sinks: tl.tensor,
    out: tl.tensor,
    sums: tl.tensor,
    head: tl.tensor,
    place: tl.tensor,
    GROUPS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SINKS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """The result of a row that is one split; `place` is its first query head in the output."""
    column = tl.arange(0, acc.shape[1])
    real = column < GROUPS
    if SINKS:
        sink = tl.load(sinks + head * GROUPS + column, mask=real, other=0.0) * LOG2_E
        new_max = tl.maximum(row_max, sink)
        row_sum = row_sum * tl.exp2(row_max - new_max) + tl.exp2(sink - new_max)
        acc = acc * tl.exp2(row_max - new_max)[None, :]
    acc = acc / tl.where(row_sum > 0, row_sum, 1.0)[None, :]
    write_heads(tl.trans(acc), out, sums, place + column, real, HEAD_DIM, WIDTH)


@triton.jit
def _store_partial(
    row_max: tl.tensor,
    row_sum: tl.tensor,
    acc: tl.tensor,
    partials: tl.tensor,
    row_stats: tl.tensor,
    counter: tl.tensor,
    split: tl.tensor,
    head: tl.tensor,
    KV_HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
) -> tl.tensor:
    """A split's partial result, for whoever adds them up; → how many splits of the row came before it."""
    column = tl.arange(0, acc.shape[1])
    real = column < GROUPS
    d = tl.arange(0, acc.shape[0])
    place = (split.to(tl.int64) * KV_HEADS + head) * GROUPS + column
    kept = real[:, None] & (d < HEAD_DIM)[None, :]
    tl.store(partials + place[:, None] * HEAD_DIM + d[None, :], tl.trans(acc), mask=kept)
    tl.store(row_stats + place * 2, row_max, mask=real)
    tl.store(row_stats + place * 2 + 1, row_sum, mask=real)
    # All threads' values must be written before one of them counts this split as done.
    tl.debug_barrier()
    return tl.atomic_add(counter, 1, sem="acq_rel")
