"""Bins of the logits of a row: how much weight is in each, and the tokens of some.

`bounds` is that of `kernels.sampling.draw`; SIZES is that of `kernels.sampling.search`.
"""

import triton
import triton.language as tl

from kernels.cuda.early import let_next_start, wait_for_inputs
from kernels.sampling.draw import BOUNDS, BY_HISTOGRAM, bounds_of
from kernels.sampling.draw_by_id import BY_MIN_P, TRIES, masses_before, min_p_masses
from kernels.sampling.logits import (
    LOWEST,
    edit_logits,
    edited_logits,
    inverse_temperature,
    ordered,
    raw_logits,
    units,
    weigh,
)
from kernels.state.sampler_state import MIN_P, TEMPERATURE, float_field, kept_by_top_k


@triton.jit
def _lanes(per_logit: tl.tensor, SIZE: tl.constexpr) -> tl.tensor:
    """0 to SIZE - 1 for a row with bins, without the compiler knowing that neighbours are side by side.

    It would give each thread four of them, as suits loads, and additions to a table one: then places,
    values and masks of every addition would go through shared memory, with two barriers each. Loads of
    the same size elsewhere in the kernel would bring that back.
    """
    return tl.arange(0, SIZE) ^ (per_logit <= 0).to(tl.int32)


@triton.jit
def bin_of(x: tl.tensor, best: tl.tensor, per_logit: tl.tensor, BINS: tl.constexpr) -> tl.tensor:
    """The bin of a finite logit, never falling as logits fall: bin 0 holds the best, the last the rest."""
    return tl.minimum(tl.maximum((best - x) * per_logit, 0.0), BINS - 1).to(tl.int32)


@triton.jit
def _bin_masses(
    source: tl.tuple,
    best: tl.tensor,
    per_logit: tl.tensor,
    floor: tl.tensor,
    table: tl.tensor,
    SHAPE: tl.constexpr,
    BINS: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Mass of each bin, tokens of each bin (with a top-k only), and the mass that min-p keeps."""
    inv_temp = inverse_temperature(float_field(source[4], source[3], TEMPERATURE))
    min_p = float_field(source[4], source[3], MIN_P)
    by_count = kept_by_top_k(source[4], source[3], SHAPE[0]) > 0
    min_p_mass = tl.zeros((TILE,), tl.int64)
    lanes = _lanes(per_logit, TILE)
    ahead = tl.program_id(0) * TILE + lanes
    coming = raw_logits(source, ahead, ahead < SHAPE[0], SHAPE)
    for first in range(tl.program_id(0) * TILE, SHAPE[0], tl.num_programs(0) * TILE):
        column = first + lanes
        ahead = column + tl.num_programs(0) * TILE
        x = edit_logits(coming, source, column, column < SHAPE[0], SHAPE)
        coming = raw_logits(source, ahead, ahead < SHAPE[0], SHAPE)
        weight = weigh(x, best, inv_temp)
        mass = tl.where(x >= floor, units(weight), 0)
        min_p_mass += tl.where(weight >= min_p, mass, 0)
        place = table + bin_of(tl.maximum(x, LOWEST), best, per_logit, BINS)
        if by_count:
            tl.atomic_add(place + BINS, tl.full((TILE,), 1, tl.int64), mask=x >= floor, sem="relaxed")
        tl.atomic_add(place, mass, mask=mass > 0, sem="relaxed")
    tl.atomic_add(table + 2 * BINS, tl.sum(min_p_mass, axis=0), sem="relaxed")


@triton.jit
def weigh_tokens(
    logits: tl.tensor,
    split_stride: tl.tensor,
    slots: tl.tensor,
    rows: tl.tensor,
    counts: tl.tensor,
    bias: tl.tensor,
    bounds: tl.tensor,
    tables: tl.tensor,
    table_stride: tl.tensor,
    found: tl.tensor,
    SHAPE: tl.constexpr,
    SIZES: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """Grid (P, R): what the search of a row needs to know of all its tokens; the programs of others return
    at once. A program takes every P-th tile. Reads the row once.

    tables int64 [R, table_stride]: mass of each bin, tokens of each, kept mass, four numbers that
    `search_tokens` counts in, and the mass of all tokens where those below the floor have a part in it;
    for a kind by id the mass of each group, or masses before tokens. SIZES is (bins, tile, tokens of a
    group, tokens listed at most, another tile).
    """
    wait_for_inputs(EARLY)
    let_next_start(EARLY)
    row = tl.program_id(1)
    best, per_logit, floor, kind = bounds_of(bounds + BOUNDS * row)
    if kind > 0:
        slot = tl.load(slots + row).to(tl.int64)
        source = (logits, split_stride, row, slot, rows, counts, bias)
        table = tables + row * table_stride
        inv_temp = inverse_temperature(float_field(rows, slot, TEMPERATURE))
        if kind == BY_HISTOGRAM:
            _bin_masses(source, best, per_logit, floor, table, SHAPE, SIZES[0], SIZES[1])
        elif kind == BY_MIN_P:
            min_p_masses(source, best, inv_temp, table, SHAPE, SIZES[2], SIZES[1])
        else:
            wanted = per_logit.to(tl.int32)
            own = found + row * SIZES[3]
            program, programs = tl.program_id(0), tl.num_programs(0)
            before, total = masses_before(
                source, own, wanted, best, inv_temp, program, programs, SHAPE, SIZES[4], TRIES
            )
            attempt = tl.arange(0, TRIES)
            tl.atomic_add(table + attempt, before, mask=attempt < wanted, sem="relaxed")
            tl.atomic_add(table + TRIES, total, sem="relaxed")


@triton.jit
def _logits_of(
    best: tl.tensor, per_logit: tl.tensor, first: tl.tensor, last: tl.tensor, BINS: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Least and largest logit that the bins from `first` to `last` may hold, and a little more.

    `bin_of` rounds: a sixteenth of a bin is more than it is wrong by. None, where `last` is before `first`.
    """
    low = tl.where(last == BINS - 1, float("-inf"), best - (last + 1.0625) / per_logit)
    high = tl.where(first == 0, float("inf"), best - (first - 0.0625) / per_logit)
    return tl.where(last < first, float("inf"), low), high


@triton.jit
def list_ranges(
    source: tl.tuple,
    best: tl.tensor,
    per_logit: tl.tensor,
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
    lanes = _lanes(per_logit, TILE)
    ahead = tl.program_id(0) * TILE + lanes
    coming = raw_logits(source, ahead, ahead < SHAPE[0], SHAPE)
    low_k, high_k = _logits_of(best, per_logit, ranges[0], ranges[1], SIZES[0])
    low_p, high_p = _logits_of(best, per_logit, ranges[2], ranges[3], SIZES[0])
    low, high = _logits_of(best, per_logit, ranges[4], ranges[5], SIZES[0])
    for start in range(tl.program_id(0) * TILE, SHAPE[0], tl.num_programs(0) * TILE):
        column = start + lanes
        ahead = column + tl.num_programs(0) * TILE
        x = edit_logits(coming, source, column, column < SHAPE[0], SHAPE)
        coming = raw_logits(source, ahead, ahead < SHAPE[0], SHAPE)
        # Bins are few: most tiles have none of their tokens, and others those of one question.
        some = ((x >= low_k) & (x <= high_k)) | ((x >= low_p) & (x <= high_p)) | ((x >= low) & (x <= high))
        if tl.max(some.to(tl.int32), axis=0) > 0:
            # A list that is full is not used: to count all of many equal tokens only costs time. Warps may
            # read different lengths, so none may decide by them where to go: they wait for each other there.
            lengths = (
                tl.load(counters, volatile=True),
                tl.load(counters + 1, volatile=True),
                tl.load(counters + 2, volatile=True),
            )
            index = tl.where(x >= floor, bin_of(tl.maximum(x, LOWEST), best, per_logit, SIZES[0]), -1)
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
    per_logit: tl.tensor,
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
        is_in = (x >= floor) & (bin_of(tl.maximum(x, LOWEST), best, per_logit, SIZES[0]) == wanted)
        low = tl.minimum(low, tl.where(is_in, x, best))
        high = tl.maximum(high, tl.where(is_in, x, LOWEST))
    return tl.min(low, axis=0), tl.max(high, axis=0)
