"""How a pass's decode rows are cut into work, decided on the device once for all layers of a kind.

Contexts are cut into KV splits of whole blocks, so that a long row beside short ones is many splits and a
short row one.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.rope_append import rotation_of
from kernels.attention.shape import AttentionShape, padded_dim
from kernels.contract import Rotation
from kernels.cuda.activations import PassTables
from kernels.cuda.early import early, wait_for_inputs

MAX_SPLITS = 32
"""The most splits that a single row is cut into."""

FEW_ROWS, FEW_ROWS_SPLITS, FEW_ROWS_PROGRAMS = 8, 64, 256
"""From 2 rows to so many, they share so many splits, fewer if they were more programs than run at once."""

MIN_TILES = 2
"""Blocks below which a split is not cut further."""

SPLIT_FIELDS = tl.constexpr(8)
"""int32 fields of a split: sequence (-1: none), the sequence's first split and how many it has, the
split's first and end block, the context's tokens, the pages of the split's first two blocks."""


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """The work of one pass's decode rows, and where its programs meet."""

    splits: Tensor
    """int32 [W, 8], see `SPLIT_FIELDS`; the splits of a row are adjacent."""
    counters: Tensor
    """int32 [num_decode, kv_heads], 0 between launches: how many splits of a row have finished."""
    partials: Tensor
    """float32 [W, kv_heads, groups, head_dim], weighted sums of values."""
    row_stats: Tensor
    """float32 [W, kv_heads, groups, 2], maximum of the scores and sum of the weights."""
    rotation: Rotation | None
    cos_sin: Tensor
    """float32 [num_decode, 2, padded head_dim], cosine and signed sine of each value; [1] if no rotation."""

    @property
    def pairs(self) -> int:
        """Pairs of values that rotate in every head; 1 without rotation."""
        return 1 if self.rotation is None else self.rotation.inv_freq.shape[0]

    @property
    def adjacent(self) -> bool:
        """Whether the values of a pair are neighbours."""
        return self.rotation is not None and self.rotation.pairing == "adjacent"


def plan_decode(tables: PassTables, shape: AttentionShape, rotation: Rotation | None = None) -> DecodePlan:
    """Cut the contexts of a pass's decode rows into splits, on the device.

    W is at most num_decode + 64. `attend_decode` needs `rotation`.
    """
    rows, device = tables.num_decode, tables.context_lens.device
    few = min(FEW_ROWS_SPLITS, FEW_ROWS_PROGRAMS // shape.kv_heads)
    most = few if 1 < rows <= FEW_ROWS else MAX_SPLITS
    work = rows + most
    dim = padded_dim(shape.head_dim)
    plan = DecodePlan(
        torch.empty((work, SPLIT_FIELDS.value), dtype=torch.int32, device=device),
        torch.empty((rows, shape.kv_heads), dtype=torch.int32, device=device),
        torch.empty((work, shape.kv_heads, shape.groups, shape.head_dim), device=device),
        torch.empty((work, shape.kv_heads, shape.groups, 2), device=device),
        rotation,
        torch.empty(1 if rotation is None else (rows, 2, dim), device=device),
    )
    if rows:
        _plan_decode[(1 if rotation is None else 1 + rows,)](
            tables.context_lens,
            tables.block_tables,
            tables.positions,
            plan.cos_sin if rotation is None else rotation.inv_freq,
            plan.splits,
            plan.counters,
            plan.cos_sin,
            tables.block_tables.stride(0),
            1.0 if rotation is None else rotation.magnitude,
            ROWS=rows,
            ROWS_PADDED=triton.next_power_of_2(rows),
            WORK=work,
            WORK_PADDED=triton.next_power_of_2(work),
            KV_HEADS=shape.kv_heads,
            BLOCK_SIZE=shape.block_size,
            WINDOW=shape.window,
            MAX_SPLITS=most,
            MIN_TILES=MIN_TILES,
            PAIRS=plan.pairs,
            ADJACENT=plan.adjacent,
            DIM=dim,
            **early(plan.splits),
            num_warps=4,
        )
    return plan


@triton.jit
def _write_splits(
    splits: tl.tensor,
    table: tl.tensor,
    number: tl.tensor,
    row: tl.tensor,
    start: tl.tensor,
    count: tl.tensor,
    first: tl.tensor,
    tiles: tl.tensor,
    context: tl.tensor,
) -> None:
    """Split number `number` of every row that has so many."""
    place = splits + (start + number) * SPLIT_FIELDS
    wanted = number < count
    begin = first + number * tiles // tl.maximum(count, 1)
    end = first + (number + 1) * tiles // tl.maximum(count, 1)
    tl.store(place, row, mask=wanted)
    tl.store(place + 1, start, mask=wanted)
    tl.store(place + 2, count, mask=wanted)
    tl.store(place + 3, begin, mask=wanted)
    tl.store(place + 4, end, mask=wanted)
    tl.store(place + 5, context, mask=wanted)
    page = tl.load(table + begin, mask=wanted & (tiles > 0), other=0)
    tl.store(place + 6, page, mask=wanted)
    following = tl.load(table + begin + 1, mask=wanted & (begin + 1 < end), other=0)
    tl.store(place + 7, following, mask=wanted)


@triton.jit(do_not_specialize=["table_width"])
def _plan_decode(
    context_lens: tl.tensor,
    block_tables: tl.tensor,
    positions: tl.tensor,
    inv_freq: tl.tensor,
    splits: tl.tensor,
    counters: tl.tensor,
    cos_sin: tl.tensor,
    table_width: tl.tensor,
    magnitude: tl.tensor,
    ROWS: tl.constexpr,
    ROWS_PADDED: tl.constexpr,
    WORK: tl.constexpr,
    WORK_PADDED: tl.constexpr,
    KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    MIN_TILES: tl.constexpr,
    PAIRS: tl.constexpr,
    ADJACENT: tl.constexpr,
    DIM: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """Grid (1 + rows or 1,): program 0 cuts, a vector over rows; program 1 + r rotates row r's position.

    Writes all 32 W bytes of splits and clears the counters. With splits of ceil(all blocks / MAX_SPLITS)
    blocks the rows need at most one split each beyond MAX_SPLITS.
    """
    wait_for_inputs(EARLY)
    if tl.program_id(0) > 0:
        token = tl.program_id(0) - 1
        cos, sin = rotation_of(tl.load(positions + token), inv_freq, magnitude, PAIRS, ADJACENT, DIM)
        d = tl.arange(0, DIM)
        tl.store(cos_sin + token * (2 * DIM) + d, cos)
        tl.store(cos_sin + token * (2 * DIM) + DIM + d, sin)
        return
    row = tl.arange(0, ROWS_PADDED)
    real = row < ROWS
    context = tl.load(context_lens + row, mask=real, other=0)
    end = tl.cdiv(context, BLOCK_SIZE)
    first = tl.zeros_like(end)
    if WINDOW > 0:
        first = tl.maximum(context - WINDOW, 0) // BLOCK_SIZE
    tiles = end - first
    length = tl.maximum(tl.cdiv(tl.sum(tiles, axis=0), MAX_SPLITS), MIN_TILES)
    count = tl.where(real, tl.maximum(tl.cdiv(tiles, length), 1), 0)
    start = tl.cumsum(count, axis=0) - count
    table = block_tables + row.to(tl.int64) * table_width
    for number in range(tl.max(count, axis=0)):
        _write_splits(splits, table, number, row, start, count, first, tiles, context)
    work = tl.arange(0, WORK_PADDED)
    unused = (work >= tl.sum(count, axis=0)) & (work < WORK)
    tl.store(splits + work * SPLIT_FIELDS, -1, mask=unused)
    for head in range(KV_HEADS):
        tl.store(counters + row * KV_HEADS + head, 0, mask=real)
