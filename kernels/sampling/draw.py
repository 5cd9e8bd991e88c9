"""The draw of each row from its few best tokens, without sorting the vocabulary.

Rows whose answer lies deeper are left to `kernels.sampling.search`. SIZES is that of
`kernels.sampling.candidates`.
"""

import triton
import triton.language as tl

from kernels.cuda.early import let_next_start, wait_for_inputs
from kernels.sampling.candidates import collect, sort_found, threshold
from kernels.sampling.draw_by_id import IN_ORDER, draw_by_id, group_masses, kind_of
from kernels.sampling.histogram_ranges import WHOLE
from kernels.sampling.logits import (
    LOWEST,
    edited_logits,
    inverse_temperature,
    keeps_many,
    logit_of,
    token_of,
    units,
    weigh,
)
from kernels.state.sampler_state import MIN_P, TEMPERATURE, TOP_P, float_field, kept_by_top_k, uniform

NATS = tl.constexpr(29.2)
"""Below the best token by so much over the temperature, a weight is no unit."""
BY_HISTOGRAM = tl.constexpr(4)
"""The search of a row in order of logits; those of others are named as their kinds."""
BOUNDS = tl.constexpr(4)
"""Numbers about a row's search: its best logit, bins per logit or else tokens drawn, a logit below which no
token is kept, and which search follows, 0 for none."""


@triton.jit
def bounds_of(bounds: tl.tensor) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """→ (best logit, bins per logit or tokens drawn, least logit, search)."""
    return tl.load(bounds), tl.load(bounds + 1), tl.load(bounds + 2), tl.load(bounds + 3).to(tl.int32)


@triton.jit
def _draw_from_candidates(
    found: tl.tensor,
    count: tl.tensor,
    best: tl.tensor,
    full: tl.tensor,
    complete: tl.tensor,
    all_in: tl.tensor,
    drawn: tl.tensor,
    rows: tl.tensor,
    slot: tl.tensor,
    top_k: tl.tensor,
    SIZE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Draw from the `count` best tokens → (id, whether that is the draw from the whole row).

    `top_k` 0 keeps all; `full` is the row's mass. `complete`: no token beyond these is kept;
    `all_in`: none beyond these has a weight.
    """
    top_p = float_field(rows, slot, TOP_P)
    min_p = float_field(rows, slot, MIN_P)
    inv_temp = inverse_temperature(float_field(rows, slot, TEMPERATURE))
    rank = tl.arange(0, SIZE)
    packed = sort_found(found, count, SIZE)
    available = tl.minimum(count, tl.where(top_k > 0, top_k, count))
    offered = rank < available
    weight = tl.where(offered, weigh(logit_of(packed), best, inv_temp), 0.0)
    mass = units(weight)
    cumulative = tl.cumsum(mass, axis=0)
    found_mass = tl.sum(mass, axis=0)
    closed = complete | (top_k > 0)
    total = tl.where(all_in | (top_k > 0), found_mass, tl.maximum(full, found_mass))
    limit = top_p.to(tl.float64) * total.to(tl.float64)
    keep = offered & (mass > 0) & ((cumulative - mass).to(tl.float64) < limit) & (weight >= min_p)
    keep = keep | (rank == 0)
    kept = tl.sum(keep.to(tl.int32), axis=0)
    closed = closed | (kept < available)
    kept_mass = tl.sum(tl.where(keep, mass, 0), axis=0)
    target = (drawn * kept_mass.to(tl.float64)).to(tl.int64)
    index = tl.sum((keep & (cumulative <= target)).to(tl.int32), axis=0)
    token = tl.sum(tl.where(rank == tl.minimum(index, kept - 1), token_of(packed), 0), axis=0)
    return token, closed


@triton.jit
def _min_p_logit(best: tl.tensor, temperature: tl.tensor, min_p: tl.tensor) -> tl.tensor:
    """A logit that no token which a min-p keeps is below, however it is rounded."""
    return tl.maximum(best + temperature * (tl.log(min_p) - 1e-3) - 1e-5 * tl.abs(best), LOWEST)


@triton.jit
def _candidates_may_decide(
    found: tl.tensor,
    count: tl.tensor,
    best: tl.tensor,
    full: tl.tensor,
    rows: tl.tensor,
    slot: tl.tensor,
    SIZE: tl.constexpr,
) -> tl.tensor:
    """Whether the `count` best tokens of a row without a top-k may decide: sorting them takes a while."""
    top_p = float_field(rows, slot, TOP_P)
    inv_temp = inverse_temperature(float_field(rows, slot, TEMPERATURE))
    rank = tl.arange(0, SIZE)
    packed = tl.load(found + rank, mask=rank < count, other=0)
    mass = tl.sum(tl.where(rank < count, units(weigh(logit_of(packed), best, inv_temp)), 0), axis=0)
    reached = mass.to(tl.float64) >= top_p.to(tl.float64) * full.to(tl.float64)
    return reached | (float_field(rows, slot, MIN_P) > 0)


@triton.jit
def _draw(
    source: tl.tuple,
    maxima: tl.tensor,
    best: tl.tensor,
    sums: tl.tensor,
    drawn: tl.tensor,
    group_list: tl.tensor,
    found: tl.tensor,
    SHAPE: tl.constexpr,
    SIZES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """→ (id, whether more tokens have to be looked at)."""
    rows = source[4]
    slot = source[3]
    SMALL: tl.constexpr = SIZES[3]
    CAPACITY: tl.constexpr = SIZES[4]
    min_p = float_field(rows, slot, MIN_P)
    temperature = float_field(rows, slot, TEMPERATURE)
    top_k = kept_by_top_k(rows, slot, SHAPE[0])
    floor = LOWEST + tl.zeros_like(best)
    full = tl.zeros_like(top_k).to(tl.int64)
    need = top_k
    if top_k == 0:
        need = need + SMALL // 2
        full = tl.sum(group_masses(maxima, sums, best, inverse_temperature(temperature)), axis=0)
        if min_p > 0:
            floor = _min_p_logit(best, temperature, min_p)
            # All that may be kept, where it can be sorted, and not only the best.
            likely = tl.sum((maxima >= floor).to(tl.int32), axis=0)
            need = tl.where(likely <= CAPACITY // 2, CAPACITY // 2, need)
    token = tl.zeros_like(top_k)
    decided = top_k < 0
    least = threshold(maxima, best, floor, need)
    count = collect(source, maxima, least, group_list, found, SHAPE, SIZES)
    all_in = least <= LOWEST
    complete = least <= floor
    if ((count >= top_k) | all_in) & (count <= CAPACITY):
        if count <= SMALL:
            token, decided = _draw_from_candidates(
                found, count, best, full, complete, all_in, drawn, rows, slot, top_k, SMALL
            )
        elif (top_k > 0) | complete | _candidates_may_decide(found, count, best, full, rows, slot, CAPACITY):
            token, decided = _draw_from_candidates(
                found, count, best, full, complete, all_in, drawn, rows, slot, top_k, CAPACITY
            )
    return token, 1 - decided.to(tl.int32)


@triton.jit
def _plan_bins(
    source: tl.tuple,
    maxima: tl.tensor,
    statistics: tl.tensor,
    plane: tl.tensor,
    best: tl.tensor,
    table: tl.tensor,
    SHAPE: tl.constexpr,
    SIZES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """→ (bins per logit, floor) of a row in order of logits whose few best tokens do not decide.

    Clears what the search counts in.
    """
    rows = source[4]
    slot = source[3]
    group = tl.arange(0, SIZES[2])
    top_k = kept_by_top_k(rows, slot, SHAPE[0])
    floor = LOWEST + tl.zeros_like(best)
    known = keeps_many(rows, slot, SHAPE[0], SIZES[5])
    inside = group < tl.where(known, SIZES[0], 0)
    least = tl.load(statistics + 2 * plane + group, mask=inside, other=-LOWEST)
    whole = tl.zeros_like(top_k).to(tl.int64)
    temperature = float_field(rows, slot, TEMPERATURE)
    min_p = float_field(rows, slot, MIN_P)
    if top_k > 0:
        floor = threshold(maxima, best, floor, top_k)
    elif min_p > 0:
        floor = _min_p_logit(best, temperature, min_p)
        # What is below has no bin, and yet a part in the mass that a top-p is of.
        sums = tl.load(statistics + plane + group, mask=inside, other=0.0)
        whole = tl.sum(group_masses(maxima, sums, best, inverse_temperature(temperature)), axis=0)
    span = best - tl.maximum(tl.where(known, tl.min(least, axis=0), LOWEST), floor)
    span = tl.minimum(span, NATS * temperature)
    place = tl.arange(0, SIZES[6])
    zeros = tl.zeros_like(place).to(tl.int64)
    tl.store(table + place, zeros)
    counters = tl.arange(0, 8)
    tl.store(table + 2 * SIZES[6] + counters, tl.where(counters == WHOLE, whole, 0))
    if top_k > 0:
        tl.store(table + SIZES[6] + place, zeros)
    return SIZES[6] / tl.maximum(span, 1e-30), floor


@triton.jit
def _choose(
    source: tl.tuple,
    statistics: tl.tensor,
    plane: tl.tensor,
    position: tl.tensor,
    group_list: tl.tensor,
    found: tl.tensor,
    table: tl.tensor,
    SHAPE: tl.constexpr,
    SIZES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """→ (id, finite, and the bounds of the search that has to follow, if one has to)."""
    GROUPS: tl.constexpr = SIZES[0]
    GROUP: tl.constexpr = SIZES[1]
    rows = source[4]
    slot = source[3]
    group = tl.arange(0, SIZES[2])
    maxima = tl.load(statistics + group, mask=group < GROUPS, other=float("-inf"))
    best = tl.max(maxima, axis=0)
    bad = tl.sum((maxima != maxima).to(tl.int32), axis=0)
    finite = ((bad == 0) & (best >= LOWEST)).to(tl.int32)
    token = tl.zeros_like(finite)
    search = token
    per_logit = tl.zeros_like(best)
    floor = LOWEST + per_logit
    temperature = float_field(rows, slot, TEMPERATURE)
    top_k = kept_by_top_k(rows, slot, SHAPE[0])
    if finite != 0:
        drawn = uniform(rows, slot, position)
        if (temperature <= 0) | (top_k == 1):
            home = tl.argmax(maxima, axis=0)
            column = home * GROUP + tl.arange(0, GROUP)
            token = home * GROUP + tl.argmax(edited_logits(source, column, column < SHAPE[0], SHAPE), axis=0)
        else:
            kind = kind_of(rows, slot, SHAPE[0])
            left = finite
            if kind != IN_ORDER:
                sums = tl.load(statistics + plane + group, mask=group < GROUPS, other=0.0)
                inv_temp = inverse_temperature(temperature)
                token, undecided, tried = draw_by_id(
                    source, maxima, sums, best, inv_temp, drawn, kind, found, table, SHAPE, SIZES
                )
                search = tl.where(undecided, kind, 0)
                per_logit = tried.to(tl.float32)
            else:
                if top_k <= SIZES[5]:
                    sums = tl.load(statistics + plane + group, mask=group < GROUPS, other=0.0)
                    token, left = _draw(source, maxima, best, sums, drawn, group_list, found, SHAPE, SIZES)
                if left != 0:
                    per_logit, floor = _plan_bins(
                        source, maxima, statistics, plane, best, table, SHAPE, SIZES
                    )
                    search = tl.zeros_like(token) + BY_HISTOGRAM
    return token, finite, best, per_logit, floor, search


@triton.jit(do_not_specialize=["plane"])
def choose_tokens(
    logits: tl.tensor,
    split_stride: tl.tensor,
    slots: tl.tensor,
    rows: tl.tensor,
    counts: tl.tensor,
    bias: tl.tensor,
    positions: tl.tensor,
    statistics: tl.tensor,
    plane: tl.tensor,
    group_list: tl.tensor,
    found: tl.tensor,
    tables: tl.tensor,
    table_stride: tl.tensor,
    results: tl.tensor,
    bounds: tl.tensor,
    POSITION_STRIDE: tl.constexpr,
    SHAPE: tl.constexpr,
    SIZES: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """Grid (R,): the id of each row, and its bounds. What a search counts in is cleared.

    bounds float32 [R, BOUNDS]. Reads 8 bytes per group, and of the groups with a candidate what
    `group_statistics` read.
    """
    wait_for_inputs(EARLY)
    let_next_start(EARLY)
    row = tl.program_id(0)
    slot = tl.load(slots + row).to(tl.int64)
    token = tl.zeros_like(row)
    finite = token + 1
    search = token
    best = tl.zeros_like(row).to(tl.float32)
    per_logit = best
    floor = best
    if slot >= 0:
        token, finite, best, per_logit, floor, search = _choose(
            (logits, split_stride, row, slot, rows, counts, bias),
            statistics + row * SIZES[0],
            plane,
            tl.load(positions + slot * POSITION_STRIDE),
            group_list + row * SIZES[2],
            found + row * SIZES[4],
            tables + row * table_stride,
            SHAPE,
            SIZES,
        )
    tl.store(results + row, token)
    tl.store(results + tl.num_programs(0) + row, finite)
    own = bounds + BOUNDS * row
    tl.store(own, best)
    tl.store(own + 1, per_logit)
    tl.store(own + 2, floor)
    tl.store(own + 3, search.to(tl.float32))
