"""How programs of prefill attention find their tile of queries, and how splits of a tile are added up."""

import triton
import triton.language as tl

from kernels.attention.softmax import LOG2_E, write_heads


@triton.jit
def find_tile(
    query_starts: tl.tensor,
    context_lens: tl.tensor,
    tile: tl.tensor,
    num_decode: tl.tensor,
    num_chunks: tl.tensor,
    num_tokens: tl.tensor,
    CHUNKS: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
) -> tuple:
    """Where a tile of TOKENS queries lies among the chunks behind the decode rows.

    → its sequence among the chunks, its first token, one past the last token of the sequence (0 for a
    tile beyond all), the first token's position, the context, and the first and end block it sees.
    Tokens behind the last sequence are padding: one more chunk, with a context of 0, so without blocks.
    """
    chunk = tl.arange(0, CHUNKS)
    begins = tl.load(query_starts + num_decode + chunk, mask=chunk <= num_chunks, other=num_tokens)
    ends = tl.load(query_starts + num_decode + chunk + 1, mask=chunk < num_chunks, other=num_tokens)
    tiles = tl.cdiv(ends - begins, TOKENS)
    found = tl.sum((tl.cumsum(tiles, axis=0) <= tile).to(tl.int32), axis=0)
    exists = found <= num_chunks
    begin = tl.load(query_starts + num_decode + found, mask=exists, other=0)
    query_end = tl.load(query_starts + num_decode + found + 1, mask=found < num_chunks, other=num_tokens)
    query_end = tl.where(exists, query_end, 0)
    context = tl.load(context_lens + num_decode + found, mask=found < num_chunks, other=0)
    inner = (tile - tl.sum(tl.where(chunk < found, tiles, 0), axis=0)) * TOKENS
    oldest = context - (query_end - begin) + inner
    newest = tl.maximum(tl.minimum(oldest + TOKENS, context), 0)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(oldest + 1 - WINDOW, 0) // BLOCK_SIZE
    return found, begin + inner, query_end, oldest, context, first, tl.cdiv(newest, BLOCK_SIZE)


@triton.jit
def splits_of(first: tl.tensor, end: tl.tensor, SPLITS: tl.constexpr, MIN_BLOCKS: tl.constexpr) -> tl.tensor:
    """How many splits the blocks of a tile are cut into."""
    return tl.minimum(tl.maximum((end - first) // MIN_BLOCKS, 1), SPLITS)


@triton.jit
def _combined(
    partials: tl.tensor,
    row_stats: tl.tensor,
    sinks: tl.tensor,
    place: tl.tensor,
    row: tl.tensor,
    head: tl.tensor,
    count: tl.tensor,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    SPLITS: tl.constexpr,
    DIM: tl.constexpr,
    SINKS: tl.constexpr,
) -> tl.tensor:
    """float32 [STEP, DIM]: what `count` splits of rows make together; `place` is where the first ones are."""
    d = tl.arange(0, DIM)
    # A row of padding may hold anything, NaN too: it is not written.
    all_max = tl.load(row_stats + place * 2)
    for split in tl.static_range(1, SPLITS):
        row_max = tl.load(
            row_stats + (place + split * ROWS) * 2,
            mask=row < tl.where(split < count, ROWS, 0),
            other=-1e30,
        )
        all_max = tl.maximum(all_max, row_max)
    divisor = tl.zeros((STEP,), tl.float32)
    if SINKS:
        sink = tl.load(sinks + head * GROUPS + row % GROUPS) * LOG2_E
        all_max = tl.maximum(all_max, sink)
        divisor += tl.exp2(sink - all_max)
    y = tl.zeros((STEP, DIM), tl.float32)
    for split in tl.static_range(SPLITS):
        there = row < tl.where(split < count, ROWS, 0)
        row_max = tl.load(row_stats + (place + split * ROWS) * 2, mask=there, other=-1e30)
        row_sum = tl.load(row_stats + (place + split * ROWS) * 2 + 1, mask=there, other=0.0)
        at = partials + (place + split * ROWS)[:, None] * DIM + d[None, :]
        weight = tl.exp2(row_max - all_max)
        divisor += weight * row_sum
        y += tl.load(at, mask=there[:, None], other=0.0) * weight[:, None]
    return y / divisor[:, None]


@triton.jit(do_not_specialize=["num_decode", "num_chunks", "num_tokens"])
def combine_splits(
    partials: tl.tensor,
    row_stats: tl.tensor,
    context_lens: tl.tensor,
    query_starts: tl.tensor,
    sinks: tl.tensor,
    out: tl.tensor,
    sums: tl.tensor,
    num_decode: tl.tensor,
    num_chunks: tl.tensor,
    num_tokens: tl.tensor,
    CHUNKS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    TOKENS: tl.constexpr,
    SPLITS: tl.constexpr,
    MIN_BLOCKS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Grid (KV heads, query tiles, ROWS / STEP): STEP rows of a tile that was cut into splits, in order.

    Bytes per row: 4 D for every split read, 2 D written.
    """
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    head = tl.program_id(0)
    _, token, query_end, _, _, first, end = find_tile(
        query_starts, context_lens, tile, num_decode, num_chunks, num_tokens,
        CHUNKS, TOKENS, BLOCK_SIZE, WINDOW,
    )  # fmt: skip
    count = splits_of(first, end, SPLITS, MIN_BLOCKS)
    row = tl.program_id(2) * STEP + tl.arange(0, STEP)
    token += row // GROUPS
    inside = (row < TOKENS * GROUPS) & (token < query_end)
    if (count == 1) | (query_end == 0):
        return
    place = (tile * KV_HEADS + head).to(tl.int64) * (SPLITS * ROWS) + row
    y = _combined(partials, row_stats, sinks, place, row, head, count, GROUPS, ROWS, STEP, SPLITS, DIM, SINKS)
    heads = (token.to(tl.int64) * KV_HEADS + head) * GROUPS + row % GROUPS
    write_heads(y, out, sums, heads, inside, HEAD_DIM, WIDTH)
