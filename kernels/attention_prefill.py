"""Causal attention of prompt chunks over paged KV: several sequences packed, each over its context."""

import triton
import triton.language as tl
from torch import Tensor

from kernels.attention_parts import LOG2_E, NO_SCORE, capped, write_heads
from kernels.attention_shape import AttentionShape, has_ptx, padded_dim
from kernels.kv_tiles import load_tile
from kernels.triton_kv import LayerKV
from kernels.triton_types import SUM_WIDTH, Activations, PassTables

ROWS = 128
"""Rows of a program's tile: query heads of one KV head for ROWS / groups tokens."""


WARPS, STAGES = 8, 3


def attention_prefill(
    q: Tensor,
    tables: PassTables,
    layer: LayerKV,
    shape: AttentionShape,
    out: Activations,
    sinks: Tensor | None = None,
) -> None:
    """Attend with the tokens behind the decode rows, and write their rows of `out`.

    q float16 [T, q_heads, head_dim] from `rope_append`; sinks float32 [q_heads], scores that take
    weight and give no value. Keys and values of the tokens are already in their pages. The host
    knows T and the number of sequences alone; tokens behind the last sequence give zeros.
    """
    tokens = tables.num_tokens - tables.num_decode
    chunks = tables.context_lens.shape[0] - tables.num_decode
    if tokens <= 0 or chunks <= 0:
        return
    rows = max(ROWS, triton.next_power_of_2(shape.groups))
    per_tile = rows // shape.groups
    scales = layer.values if layer.scales is None else layer.scales
    # Every sequence, and the padding behind them, may have one tile that is not full.
    tiles = triton.cdiv(tokens, per_tile) + chunks
    _attention_prefill[(shape.kv_heads, tiles)](
        q,
        layer.values,
        scales,
        tables.block_tables,
        tables.context_lens,
        tables.query_starts,
        q if sinks is None else sinks,
        out.values,
        out.sums,
        layer.values.stride(0),
        scales.stride(0),
        tables.block_tables.stride(0),
        tables.num_decode,
        chunks,
        tables.num_tokens,
        CHUNKS=triton.next_power_of_2(chunks + 1),
        KV_HEADS=shape.kv_heads,
        GROUPS=shape.groups,
        ROWS=rows,
        TOKENS=per_tile,
        HEAD_DIM=shape.head_dim,
        DIM=padded_dim(shape.head_dim),
        BLOCK_SIZE=shape.block_size,
        WINDOW=shape.window,
        CAP=shape.score_cap,
        SINKS=sinks is not None,
        QUANTIZED=layer.scales is not None,
        FAST=has_ptx(layer.values),
        WIDTH=SUM_WIDTH,
        num_warps=WARPS,
        num_stages=STAGES,
    )


@triton.jit
def _attend_tiles(
    query: tl.tensor,
    top: tl.tensor,
    total: tl.tensor,
    acc: tl.tensor,
    position: tl.tensor,
    context: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    table: tl.tensor,
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
    DIAGONAL: tl.constexpr,
    FAST: tl.constexpr,
) -> tuple:
    """Online softmax over blocks [first, end); only DIAGONAL ones hold keys behind some position."""
    slot = tl.arange(0, BLOCK_SIZE)
    plane: tl.constexpr = KV_HEADS * BLOCK_SIZE * HEAD_DIM
    block = tl.load(table + first, mask=first < end, other=0)
    for tile in range(first, end):
        page = block.to(tl.int64) * block_stride + head * (BLOCK_SIZE * HEAD_DIM)
        scale_page = block.to(tl.int64) * scale_stride + head * (BLOCK_SIZE * (HEAD_DIM // 32))
        # One step ahead, so that the next tile's address does not wait for memory.
        block = tl.load(table + tile + 1, mask=tile + 1 < end, other=0)
        place = tile * BLOCK_SIZE + slot
        key = load_tile(
            values, scales, page, scale_page, place >= 0,
            HEAD_DIM, DIM, BLOCK_SIZE, QUANTIZED, False, True, FAST,
        )  # fmt: skip
        value = load_tile(
            values, scales, page + plane, scale_page + plane // 32, place < context,
            HEAD_DIM, DIM, BLOCK_SIZE, QUANTIZED, DIAGONAL, False, FAST,
        )  # fmt: skip
        scores = capped(tl.dot(query, key), CAP)
        if DIAGONAL:
            scores = tl.where(place[None, :] <= position[:, None], scores, NO_SCORE)
        if WINDOW > 0:
            scores = tl.where(place[None, :] > position[:, None] - WINDOW, scores, NO_SCORE)
        highest = tl.maximum(top, tl.max(scores, axis=1))
        fade = tl.exp2(top - highest)
        weight = tl.exp2(scores - highest[:, None])
        total = total * fade + tl.sum(weight, axis=1)
        acc = tl.dot(weight.to(tl.float16), value, acc * fade[:, None])
        top = highest
    return top, total, acc


@triton.jit(do_not_specialize=["table_width", "num_decode", "num_chunks", "num_tokens"])
def _attention_prefill(
    q: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    block_tables: tl.tensor,
    context_lens: tl.tensor,
    query_starts: tl.tensor,
    sinks: tl.tensor,
    out: tl.tensor,
    sums: tl.tensor,
    block_stride: tl.tensor,
    scale_stride: tl.tensor,
    table_width: tl.tensor,
    num_decode: tl.tensor,
    num_chunks: tl.tensor,
    num_tokens: tl.tensor,
    CHUNKS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    SINKS: tl.constexpr,
    QUANTIZED: tl.constexpr,
    FAST: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Grid (KV heads, query tiles): TOKENS tokens by GROUPS heads in ROWS rows, latest tiles first.

    A program finds its sequence among the chunks' query lengths. Operations: 4 D for every visible
    (query head, key); bytes: the KV of a context once per tile, mostly out of the L2.
    """
    # Tokens behind the last sequence are padding: one more chunk, without a context.
    chunk = tl.arange(0, CHUNKS)
    begins = tl.load(query_starts + num_decode + chunk, mask=chunk <= num_chunks, other=num_tokens)
    ends = tl.load(query_starts + num_decode + chunk + 1, mask=chunk < num_chunks, other=num_tokens)
    tiles = tl.cdiv(ends - begins, TOKENS)
    last_tiles = tl.cumsum(tiles, axis=0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    if tile >= tl.sum(tiles, axis=0):
        return
    found = tl.sum((last_tiles <= tile).to(tl.int32), axis=0)
    begin = tl.load(query_starts + num_decode + found)
    query_end = tl.load(query_starts + num_decode + found + 1, mask=found < num_chunks, other=num_tokens)
    context = tl.load(context_lens + num_decode + found, mask=found < num_chunks, other=0)
    tile -= tl.sum(tl.where(chunk < found, tiles, 0), axis=0)
    head = tl.program_id(0)

    row = tl.arange(0, ROWS)
    d = tl.arange(0, DIM)
    token = begin + tile * TOKENS + row // GROUPS
    inside = (row < TOKENS * GROUPS) & (token < query_end)
    place = (token.to(tl.int64) * KV_HEADS + head) * GROUPS + row % GROUPS
    kept = inside[:, None] & (d < HEAD_DIM)[None, :]
    query = tl.load(q + place[:, None] * HEAD_DIM + d[None, :], mask=kept, other=0.0)
    # Padding has a context of 0: its positions are negative, and it has no blocks.
    oldest = context - (query_end - begin) + tile * TOKENS
    position = oldest + row // GROUPS
    newest = tl.minimum(oldest + TOKENS, context)
    whole = tl.maximum(oldest + 1, 0) // BLOCK_SIZE
    end = tl.cdiv(tl.maximum(newest, 0), BLOCK_SIZE)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(oldest + 1 - WINDOW, 0) // BLOCK_SIZE

    top = tl.full((ROWS,), NO_SCORE, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, DIM), tl.float32)
    table = block_tables + (num_decode + found).to(tl.int64) * table_width
    top, total, acc = _attend_tiles(
        query, top, total, acc, position, context, first, whole, values, scales, table, head,
        block_stride, scale_stride, KV_HEADS, HEAD_DIM, DIM, BLOCK_SIZE, WINDOW, CAP, QUANTIZED, False, FAST,
    )  # fmt: skip
    top, total, acc = _attend_tiles(
        query, top, total, acc, position, context, tl.maximum(first, whole), end, values, scales, table, head,
        block_stride, scale_stride, KV_HEADS, HEAD_DIM, DIM, BLOCK_SIZE, WINDOW, CAP, QUANTIZED, True, FAST,
    )  # fmt: skip
    if SINKS:
        sink = tl.load(sinks + head * GROUPS + row % GROUPS) * LOG2_E
        highest = tl.maximum(top, sink)
        total = total * tl.exp2(top - highest) + tl.exp2(sink - highest)
        acc = acc * tl.exp2(top - highest)[:, None]
    # Scores of rows without any key are all NO_SCORE, which weighs 1: their values were read as 0.
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]
    write_heads(acc, out, sums, place, inside, HEAD_DIM, WIDTH)
