"""Causal attention of prompt chunks over paged KV: several sequences packed, each over its context."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.prefill_tiles import combine_splits, find_tile, splits_of
from kernels.attention.shape import AttentionShape, padded_dim
from kernels.attention.softmax import LOG2_E, NO_SCORE, capped, write_heads
from kernels.cuda.activations import SUM_WIDTH, Activations, PassTables, has_ptx
from kernels.cuda.gpu import gpu_of
from kernels.kv.pages import LayerKV
from kernels.kv.tiles import load_tile, product

LONG = 1024
"""Tokens from which on a tile on Hopper has 128 rows and 8 warps, else 64 and 4; a row is a token and
query head. Other GPUs hold a tile's operands in registers: they take 64 rows, 8 warps and 2 stages."""

LONG_HEAD = 256
"""Values of a head beyond which tiles have fewer rows and keys, for which 8 warps have the registers."""

PROGRAMS = 264
"""Tiles are cut into splits while their programs are no more than this: two for each of 132 processors."""

MAX_SPLITS, MIN_BLOCKS = 8, 8
"""The most splits of a tile, and the fewest blocks of a split."""


OTHER_SHARED = 99 << 10
"""Bytes of shared memory that one program takes at most where a GPU is none of Hopper's."""


def attention_prefill(
    q: Tensor,
    tables: PassTables,
    layer: LayerKV,
    shape: AttentionShape,
    out: Activations,
    sinks: Tensor | None = None,
    batch_invariant: bool = False,
) -> None:
    """Attend with the tokens behind the decode rows, and write their rows of `out`.

    q [T, q_heads, head_dim] from `rope_append`; sinks float32 [q_heads], scores that take
    weight and give no value. Keys and values of the tokens are already in their pages. The host
    knows T and the number of sequences alone; tokens behind the last sequence give zeros. With
    batch_invariant in tiles of one size that are never cut: a token's result depends on its context alone.
    """
    tokens = tables.num_tokens - tables.num_decode
    chunks = tables.context_lens.shape[0] - tables.num_decode
    if tokens <= 0 or chunks <= 0:
        return
    large = tokens >= LONG and not batch_invariant and q.dtype is not torch.float32
    rows = max(_rows(shape, large, _is_hopper(q)), triton.next_power_of_2(shape.groups))
    per_tile = rows // shape.groups
    # Every sequence, and the padding behind them, may have one tile that is not full.
    tiles = triton.cdiv(tokens, per_tile) + chunks
    programs = triton.cdiv(tokens, per_tile) * shape.kv_heads
    visible = shape.window or tables.block_tables.shape[1] * shape.block_size
    splits = min(MAX_SPLITS, PROGRAMS // programs, visible // (MIN_BLOCKS * shape.block_size))
    _launch(q, tables, layer, shape, out, sinks, rows, tiles, 1 if batch_invariant else max(1, splits))


def _launch(
    q: Tensor,
    tables: PassTables,
    layer: LayerKV,
    shape: AttentionShape,
    out: Activations,
    sinks: Tensor | None,
    rows: int,
    tiles: int,
    splits: int,
) -> None:
    hopper, wide = _is_hopper(q), q.dtype is torch.float32
    scales = layer.values if layer.scales is None else layer.scales
    held = tiles * shape.kv_heads * splits * rows if splits > 1 else 0
    acc = torch.empty(held * padded_dim(shape.head_dim), device=q.device) if held else out.sums
    row_stats = torch.empty(held * 2, device=q.device) if held else out.sums
    extra = q if sinks is None else sinks
    chunks = tables.context_lens.shape[0] - tables.num_decode
    counts = (tables.num_decode, chunks, tables.num_tokens)
    options = _options(shape, chunks, rows, splits, sinks is not None)
    _attention_prefill[(shape.kv_heads, tiles, splits)](
        q,
        layer.values,
        scales,
        tables.block_tables,
        tables.context_lens,
        tables.query_starts,
        extra,
        out.values,
        out.sums,
        acc,
        row_stats,
        layer.values.stride(0),
        scales.stride(0),
        tables.block_tables.stride(0),
        *counts,
        CAP=shape.score_cap,
        QUANTIZED=layer.scales is not None,
        # On an H200 products of three tf32 parts, with tiles copied ahead, accessed memory illegally.
        FAST=has_ptx(layer.values) and not wide,
        TILE=_tile(shape, wide),
        num_warps=8 if rows >= 128 or not hopper or shape.head_dim > LONG_HEAD or wide else 4,
        num_stages=_stages(rows, shape, hopper, gpu_of(q).shared, wide),
        **options,
    )
    if splits > 1:
        step = min(16 if shape.head_dim <= LONG_HEAD else 8, rows)
        combine_splits[(shape.kv_heads, tiles, rows // step)](
            acc,
            row_stats,
            tables.context_lens,
            tables.query_starts,
            extra,
            out.values,
            out.sums,
            *counts,
            STEP=step,
            num_warps=4,
            **options,
        )


def _rows(shape: AttentionShape, large: bool, hopper: bool) -> int:
    if shape.head_dim > LONG_HEAD:
        return 64 if hopper else 32
    return 128 if large and hopper else 64


def _tile(shape: AttentionShape, wide: bool) -> int:
    """Keys of one step of the loop; few of float32, whose products take more registers."""
    return min(shape.block_size, 16 if wide else 32 if shape.head_dim > LONG_HEAD else 64)


def _stages(rows: int, shape: AttentionShape, hopper: bool, shared: int, wide: bool) -> int:
    """Tiles of keys and values on their way at once: as many as shared memory holds, beside q on Hopper."""
    if wide:
        return 1
    line = 2 * padded_dim(shape.head_dim)
    wanted, room = (3, shared - rows * line) if hopper else (2, min(shared, OTHER_SHARED))
    return max(1, min(wanted, room // (2 * _tile(shape, wide) * line)))


def _is_hopper(tensor: Tensor) -> bool:
    if not tensor.is_cuda or torch.version.cuda is None:
        return False
    return torch.cuda.get_device_capability(tensor.device)[0] == 9


def _options(shape: AttentionShape, chunks: int, rows: int, splits: int, with_sinks: bool) -> dict[str, Any]:
    """What both kernels of a prefill are compiled for."""
    return {
        "CHUNKS": triton.next_power_of_2(chunks + 1),
        "KV_HEADS": shape.kv_heads,
        "GROUPS": shape.groups,
        "ROWS": rows,
        "TOKENS": rows // shape.groups,
        "SPLITS": splits,
        "MIN_BLOCKS": MIN_BLOCKS,
        "HEAD_DIM": shape.head_dim,
        "DIM": padded_dim(shape.head_dim),
        "BLOCK_SIZE": shape.block_size,
        "WINDOW": shape.window,
        "SINKS": with_sinks,
        "WIDTH": SUM_WIDTH,
    }


@triton.jit
def _attend_tiles(
    query: tl.tensor,
    row_max: tl.tensor,
    row_sum: tl.tensor,
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
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    QUANTIZED: tl.constexpr,
    DIAGONAL: tl.constexpr,
    FAST: tl.constexpr,
) -> tuple:
    """Online softmax over blocks [first, end), TILE slots at a time; only DIAGONAL ones hold keys behind some
    position.
    """
    parts: tl.constexpr = BLOCK_SIZE // TILE
    slot = tl.arange(0, TILE)
    plane: tl.constexpr = KV_HEADS * BLOCK_SIZE
    groups: tl.constexpr = (HEAD_DIM + 31) // 32
    block = tl.load(table + first, mask=first < end, other=0)
    for tile in range(first * parts, end * parts):
        start = head * BLOCK_SIZE + tile % parts * TILE
        page = block.to(tl.int64) * block_stride + start * HEAD_DIM
        scale_page = block.to(tl.int64) * scale_stride + start * groups
        # One step ahead, so that the next tile's address does not wait for memory.
        block = tl.load(table + (tile + 1) // parts, mask=tile + 1 < end * parts, other=0)
        place = tile * TILE + slot
        key = load_tile(
            values, scales, page, scale_page, place >= 0,
            HEAD_DIM, DIM, TILE, QUANTIZED, False, True, FAST,
        )  # fmt: skip
        value = load_tile(
            values, scales, page + plane * HEAD_DIM, scale_page + plane * groups, place < context,
            HEAD_DIM, DIM, TILE, QUANTIZED, DIAGONAL, False, FAST,
        )  # fmt: skip
        scores = capped(product(query, key, None, FAST), CAP)
        if DIAGONAL:
            scores = tl.where(place[None, :] <= position[:, None], scores, NO_SCORE)
        if WINDOW > 0:
            scores = tl.where(place[None, :] > position[:, None] - WINDOW, scores, NO_SCORE)
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        rescale = tl.exp2(row_max - new_max)
        weight = tl.exp2(scores - new_max[:, None])
        row_sum = row_sum * rescale + tl.sum(weight, axis=1)
        acc = product(weight.to(value.dtype), value, acc * rescale[:, None], FAST)
        row_max = new_max
    return row_max, row_sum, acc


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
    partials: tl.tensor,
    row_stats: tl.tensor,
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
    SPLITS: tl.constexpr,
    MIN_BLOCKS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    SINKS: tl.constexpr,
    QUANTIZED: tl.constexpr,
    FAST: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Grid (KV heads, query tiles, SPLITS): TOKENS tokens by GROUPS heads in ROWS rows, latest tiles first.

    A program finds its sequence among the chunks' query lengths. Few tiles over long contexts are cut
    into splits, which `combine_splits` adds up. Operations: 4 D for every visible (query head, key);
    bytes: the KV of a context once per tile, mostly out of the L2.
    """
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    head = tl.program_id(0)
    found, start, query_end, oldest, context, first, end = find_tile(
        query_starts, context_lens, tile, num_decode, num_chunks, num_tokens,
        CHUNKS, TOKENS, BLOCK_SIZE, WINDOW,
    )  # fmt: skip
    count = splits_of(first, end, SPLITS, MIN_BLOCKS)
    split = tl.program_id(2)
    if (query_end == 0) | (split >= count):
        return
    row = tl.arange(0, ROWS)
    d = tl.arange(0, DIM)
    token = start + row // GROUPS
    inside = (row < TOKENS * GROUPS) & (token < query_end)
    place = (token.to(tl.int64) * KV_HEADS + head) * GROUPS + row % GROUPS
    kept = inside[:, None] & (d < HEAD_DIM)[None, :]
    query = tl.load(q + place[:, None] * HEAD_DIM + d[None, :], mask=kept, other=0.0)
    position = oldest + row // GROUPS
    whole = tl.maximum(oldest + 1, 0) // BLOCK_SIZE
    if SPLITS > 1:
        blocks = end - first
        end = first + blocks * (split + 1) // count
        first += blocks * split // count
        whole = tl.minimum(whole, end)

    row_max = tl.full((ROWS,), NO_SCORE, tl.float32)
    row_sum = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, DIM), tl.float32)
    table = block_tables + (num_decode + found).to(tl.int64) * table_width
    row_max, row_sum, acc = _attend_tiles(
        query, row_max, row_sum, acc, position, context, first, whole, values, scales, table, head,
        block_stride, scale_stride, KV_HEADS, HEAD_DIM, DIM, BLOCK_SIZE, TILE, WINDOW, CAP, QUANTIZED,
        False, FAST,
    )  # fmt: skip
    row_max, row_sum, acc = _attend_tiles(
        query, row_max, row_sum, acc, position, context, tl.maximum(first, whole), end, values, scales,
        table, head, block_stride, scale_stride, KV_HEADS, HEAD_DIM, DIM, BLOCK_SIZE, TILE, WINDOW, CAP,
        QUANTIZED, True, FAST,
    )  # fmt: skip
    if count == 1:
        if SINKS:
            sink = tl.load(sinks + head * GROUPS + row % GROUPS) * LOG2_E
            new_max = tl.maximum(row_max, sink)
            row_sum = row_sum * tl.exp2(row_max - new_max) + tl.exp2(sink - new_max)
            acc = acc * tl.exp2(row_max - new_max)[:, None]
        # Scores of rows without any key are all NO_SCORE, which weighs 1: their values were read as 0.
        acc = acc / tl.where(row_sum > 0, row_sum, 1.0)[:, None]
        write_heads(acc, out, sums, place, inside, HEAD_DIM, WIDTH)
    else:
        if SPLITS > 1:
            at = ((tile * KV_HEADS + head).to(tl.int64) * SPLITS + split) * ROWS + row
            tl.store(partials + at[:, None] * DIM + d[None, :], acc)
            tl.store(row_stats + at * 2, row_max)
            tl.store(row_stats + at * 2 + 1, row_sum)
