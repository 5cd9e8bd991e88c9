"""Bins of equal width in the logits of a row: how much weight is in each, and the tokens of one.

`bins` is how many bins a logit is wide; SIZES is (bins, tokens listed at most, width and height of a
tile).
"""

import triton
import triton.language as tl

from kernels.sampler_draw import kept_by_top_k
from kernels.sampler_logits import LOWEST, bin_of, edited_logits, ordered, sharpness, units, weigh
from kernels.sampler_state import MIN_P, TEMPERATURE, float_field


@triton.jit
def bin_tokens(
    logits: tl.tensor,
    split_stride: tl.tensor,
    slots: tl.tensor,
    rows: tl.tensor,
    counts: tl.tensor,
    bias: tl.tensor,
    bounds: tl.tensor,
    tables: tl.tensor,
    SHAPE: tl.constexpr,
    BINS: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Grid (P, R): mass of each bin, tokens of each bin (with a top-k only), and the mass that min-p
    keeps, of rows under search; the others return at once. A program takes every P-th tile.

    tables int64 [R, 2 BINS + 8]: mass, tokens, kept mass, counters of `search_tokens`.
    """
    row = tl.program_id(1)
    best = tl.load(bounds + 2 * row)
    bins = tl.load(bounds + 2 * row + 1)
    if bins > 0:
        slot = tl.load(slots + row).to(tl.int64)
        source = (logits, split_stride, row, slot, rows, counts, bias)
        sharp = sharpness(float_field(rows, slot, TEMPERATURE))
        min_p = float_field(rows, slot, MIN_P)
        table = tables + row * (2 * BINS + 8)
        by_count = kept_by_top_k(rows, slot, SHAPE[0]) > 0
        likely = tl.zeros((TILE,), tl.int64)
        for first in range(tl.program_id(0) * TILE, SHAPE[0], tl.num_programs(0) * TILE):
            column = first + tl.arange(0, TILE)
            x = edited_logits(source, column, column < SHAPE[0], SHAPE)
            weight = weigh(x, best, sharp)
            mass = units(weight)
            place = table + bin_of(tl.maximum(x, LOWEST), best, bins, BINS)
            tl.atomic_add(place, mass, mask=mass > 0, sem="relaxed")
            if by_count:
                one = tl.full((TILE,), 1, tl.int64)
                tl.atomic_add(place + BINS, one, mask=x >= LOWEST, sem="relaxed")
            likely += tl.where(weight >= min_p, mass, 0)
        tl.atomic_add(table + 2 * BINS, tl.sum(likely, axis=0), sem="relaxed")


@triton.jit
def _in_bin(
    x: tl.tensor, best: tl.tensor, bins: tl.tensor, wanted: tl.tensor, BINS: tl.constexpr
) -> tl.tensor:
    """Whether `bin_of` is `wanted`, for logits that are not forbidden."""
    place = (best - x) * bins
    end = tl.where(wanted == BINS - 1, float("inf"), wanted + 1.0)
    return (x >= LOWEST) & (place >= wanted) & (place < end)


@triton.jit
def gather(
    source: tl.tuple,
    best: tl.tensor,
    bins: tl.tensor,
    wanted: tl.tensor,
    counters: tl.tensor,
    picked: tl.tensor,
    found: tl.tensor,
    SHAPE: tl.constexpr,
    SIZES: tl.constexpr,
) -> tl.tensor:
    """Write the tokens of a bin to `found` in any order; → how many there are, or more than fit.

    First eights of neighbours that have one are listed: appending costs more than looking.
    """
    WIDTH: tl.constexpr = SIZES[2]
    CAPACITY: tl.constexpr = SIZES[1]
    lane = tl.arange(0, 8)[None, :]
    for first in range(0, (SHAPE[0] + 7) // 8, WIDTH):
        eight = first + tl.arange(0, WIDTH)
        column = eight[:, None] * 8 + lane
        x = edited_logits(source, column, column < SHAPE[0], SHAPE)
        hit = tl.max(_in_bin(x, best, bins, wanted, SIZES[0]).to(tl.int32), axis=1) > 0
        place = tl.atomic_add(counters + eight * 0, tl.full((WIDTH,), 1, tl.int64), mask=hit)
        tl.store(picked + place, eight, mask=hit & (place < CAPACITY))
    tl.debug_barrier()
    eights = tl.atomic_add(counters, 0)
    count = eights
    if eights <= CAPACITY:
        STEP: tl.constexpr = min(512, CAPACITY)
        for first in range(0, eights.to(tl.int32), STEP):
            index = first + tl.arange(0, STEP)
            listed = index < eights
            column = tl.load(picked + index, mask=listed, other=0)[:, None] * 8 + lane
            x = edited_logits(source, column, (column < SHAPE[0]) & listed[:, None], SHAPE)
            is_in = _in_bin(x, best, bins, wanted, SIZES[0])
            place = tl.atomic_add(counters + 1 + column * 0, tl.full((STEP, 8), 1, tl.int64), mask=is_in)
            tl.store(found + place, ordered(x, column), mask=is_in & (place < CAPACITY))
        tl.debug_barrier()
        count = tl.atomic_add(counters + 1, 0)
    tl.debug_barrier()
    return count


@triton.jit
def span_of(
    source: tl.tuple,
    best: tl.tensor,
    bins: tl.tensor,
    wanted: tl.tensor,
    SHAPE: tl.constexpr,
    SIZES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Least and largest logit of a bin."""
    WIDTH: tl.constexpr = SIZES[2]
    low = tl.zeros((WIDTH,), tl.float32) + best
    high = tl.zeros((WIDTH,), tl.float32) + LOWEST
    for first in range(0, SHAPE[0], WIDTH):
        column = first + tl.arange(0, WIDTH)
        x = edited_logits(source, column, column < SHAPE[0], SHAPE)
        is_in = _in_bin(x, best, bins, wanted, SIZES[0])
        low = tl.minimum(low, tl.where(is_in, x, best))
        high = tl.maximum(high, tl.where(is_in, x, LOWEST))
    return tl.min(low, axis=0), tl.max(high, axis=0)
