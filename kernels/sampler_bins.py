"""Bins of the logits of a row: how much weight is in each, and the tokens of some.

`bounds` is that of `kernels.sampler_draw`; SIZES is that of `kernels.sampler_search`.
"""

import triton
import triton.language as tl

from kernels.sampler_draw import BOUNDS, bounds_of, kept_by_top_k
from kernels.sampler_logits import (
    LOWEST,
    edit_logits,
    edited_logits,
    ordered,
    raw_logits,
    sharpness,
    units,
    weigh,
)
from kernels.sampler_state import MIN_P, TEMPERATURE, float_field
from kernels.sampler_windows import bin_of


@triton.jit
def _lanes(spread: tl.tuple, SIZE: tl.constexpr) -> tl.tensor:
    """0 to SIZE - 1 for a row under search, without the compiler knowing that neighbours are side by side.

    It would give each thread four of them, as suits loads, and additions to a table one: then places,
    values and masks of every addition would go through shared memory, with two barriers each.
    """
    return tl.arange(0, SIZE) ^ (spread[1] <= 0).to(tl.int32)


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

    tables int64 [R, 2 BINS + 8]: mass, tokens, kept mass, and what `search_tokens` counts in. Where there
    are windows, what lies outside is added up by each program before it is added to the table, and the
    last bin has no mass: it is what is left of the kept mass.
    """
    row = tl.program_id(1)
    best, spread, floor, windows = bounds_of(bounds + BOUNDS * row)
    if spread[1] > 0:
        slot = tl.load(slots + row).to(tl.int64)
        source = (logits, split_stride, row, slot, rows, counts, bias)
        sharp = sharpness(float_field(rows, slot, TEMPERATURE))
        min_p = float_field(rows, slot, MIN_P)
        table = tables + row * (2 * BINS + 8)
        by_count = kept_by_top_k(rows, slot, SHAPE[0]) > 0
        likely = tl.zeros((TILE,), tl.int64)
        above = tl.zeros((TILE,), tl.int64)
        between = tl.zeros((TILE,), tl.int64)
        lanes = _lanes(spread, TILE)
        ahead = tl.program_id(0) * TILE + lanes
        coming = raw_logits(source, ahead, ahead < SHAPE[0], SHAPE)
        for first in range(tl.program_id(0) * TILE, SHAPE[0], tl.num_programs(0) * TILE):
            column = first + lanes
            ahead = column + tl.num_programs(0) * TILE
            x = edit_logits(coming, source, column, column < SHAPE[0], SHAPE)
            coming = raw_logits(source, ahead, ahead < SHAPE[0], SHAPE)
            weight = weigh(x, best, sharp)
            mass = tl.where(x >= floor, units(weight), 0)
            likely += tl.where(weight >= min_p, mass, 0)
            index = bin_of(tl.maximum(x, LOWEST), spread, BINS)
            if by_count:
                one = tl.full((TILE,), 1, tl.int64)
                tl.atomic_add(table + BINS + index, one, mask=x >= floor, sem="relaxed")
            if windows:
                gap = spread[2].to(tl.int32)
                above += tl.where(index == 0, mass, 0)
                between += tl.where((index == gap) & (gap < BINS - 1), mass, 0)
                mass = tl.where((index == 0) | (index == gap) | (index == BINS - 1), 0, mass)
            tl.atomic_add(table + index, mass, mask=mass > 0, sem="relaxed")
        tl.atomic_add(table + 2 * BINS, tl.sum(likely, axis=0), sem="relaxed")
        if windows:
            tl.atomic_add(table, tl.sum(above, axis=0), sem="relaxed")
            tl.atomic_add(table + spread[2].to(tl.int32), tl.sum(between, axis=0), sem="relaxed")


@triton.jit
def list_ranges(
    source: tl.tuple,
    spread: tl.tuple,
    floor: tl.tensor,
    ranges: tl.tuple,
    listed: tl.tensor,
    counters: tl.tensor,
    SHAPE: tl.constexpr,
    SIZES: tl.constexpr,
) -> None:
    """A program's share of the tokens in three ranges of bins, each to its own list in any order.

    `ranges` is the first and last bin of each; a counter is the length of its list, or more than fit.
    """
    TILE: tl.constexpr = SIZES[2]
    CAPACITY: tl.constexpr = SIZES[1]
    lanes = _lanes(spread, TILE)
    ahead = tl.program_id(0) * TILE + lanes
    coming = raw_logits(source, ahead, ahead < SHAPE[0], SHAPE)
    for start in range(tl.program_id(0) * TILE, SHAPE[0], tl.num_programs(0) * TILE):
        column = start + lanes
        ahead = column + tl.num_programs(0) * TILE
        # A list that is full is not used: a count of all of many equal tokens would only cost time. Read
        # here, where nothing waits for it yet.
        lengths = (
            tl.load(counters, volatile=True),
            tl.load(counters + 1, volatile=True),
            tl.load(counters + 2, volatile=True),
        )
        x = edit_logits(coming, source, column, column < SHAPE[0], SHAPE)
        coming = raw_logits(source, ahead, ahead < SHAPE[0], SHAPE)
        index = tl.where(x >= floor, bin_of(tl.maximum(x, LOWEST), spread, SIZES[0]), -1)
        some = (index >= ranges[0]) & (index <= ranges[1])
        some |= (index >= ranges[2]) & (index <= ranges[3])
        some |= (index >= ranges[4]) & (index <= ranges[5])
        # Bins are few: most tiles have none of their tokens, and others those of one question.
        if tl.max(some.to(tl.int32), axis=0) > 0:
            for i in tl.static_range(3):
                last = tl.where(lengths[i] <= CAPACITY, ranges[2 * i + 1], -1)
                hit = (index >= ranges[2 * i]) & (index <= last)
                if tl.max(hit.to(tl.int32), axis=0) > 0:
                    one = tl.full((TILE,), 1, tl.int64)
                    place = tl.atomic_add(counters + i + 0 * column, one, mask=hit, sem="relaxed")
                    entry = listed + i * CAPACITY + place
                    tl.store(entry, ordered(x, column), mask=hit & (place < CAPACITY))


@triton.jit
def span_of(
    source: tl.tuple,
    best: tl.tensor,
    spread: tl.tuple,
    floor: tl.tensor,
    wanted: tl.tensor,
    SHAPE: tl.constexpr,
    SIZES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Least and largest logit of a bin."""
    WIDTH: tl.constexpr = SIZES[3]
    low = tl.zeros((WIDTH,), tl.float32) + best
    high = tl.zeros((WIDTH,), tl.float32) + LOWEST
    for first in range(0, SHAPE[0], WIDTH):
        column = first + tl.arange(0, WIDTH)
        x = edited_logits(source, column, column < SHAPE[0], SHAPE)
        is_in = (x >= floor) & (bin_of(tl.maximum(x, LOWEST), spread, SIZES[0]) == wanted)
        low = tl.minimum(low, tl.where(is_in, x, best))
        high = tl.maximum(high, tl.where(is_in, x, LOWEST))
    return tl.min(low, axis=0), tl.max(high, axis=0)
