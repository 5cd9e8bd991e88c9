"""The draw of a row from its whole vocabulary, by narrowing down where in the order it falls.

For rows that the best tokens do not decide: many tokens kept, or many equal ones. Every question,
which token is the last of the top-k, of the top-p, and which is drawn, asks for the token at a place
in the order of logits, counted in tokens or in weight. Bins of equal width in the logits say where it
lies, and the few tokens of that bin are sorted. A bin of more tokens than fit is split in four until
those left are equal. Counts and weights are integers, so sums in any order are the same.

SIZES is (bins, tokens sorted at most, width and height of a tile).
"""

import triton
import triton.language as tl

from kernels.sampler_bins import gather, span_of
from kernels.sampler_candidates import sort_found
from kernels.sampler_draw import kept_by_top_k
from kernels.sampler_logits import (
    edited_logits,
    logit_of,
    ordered,
    sharpness,
    token_of,
    units,
    weigh,
)
from kernels.sampler_state import TEMPERATURE, TOP_P, float_field, uniform


@triton.jit
def _reaching(
    source: tl.tuple,
    best: tl.tensor,
    sharp: tl.tensor,
    least: tl.tensor,
    SHAPE: tl.constexpr,
    SIZES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Tokens with a logit >= `least`, and their mass."""
    WIDTH: tl.constexpr = SIZES[2]
    UNROLL: tl.constexpr = SIZES[3]
    count = tl.zeros((WIDTH,), tl.int64)
    mass = tl.zeros((WIDTH,), tl.int64)
    for first in range(0, SHAPE[0], WIDTH * UNROLL):
        column = first + tl.arange(0, UNROLL)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
        x = edited_logits(source, column, column < SHAPE[0], SHAPE)
        count += tl.sum((x >= least).to(tl.int32), axis=0)
        mass += tl.sum(tl.where(x >= least, units(weigh(x, best, sharp)), 0), axis=0)
    return tl.sum(count, axis=0), tl.sum(mass, axis=0)


@triton.jit
def _narrow(
    source: tl.tuple,
    best: tl.tensor,
    sharp: tl.tensor,
    low: tl.tensor,
    top: tl.tensor,
    goal: tl.tensor,
    by_mass: tl.tensor,
    SHAPE: tl.constexpr,
    SIZES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The answer among the tokens with logits in [low, top], too many to sort.

    Splits until all tokens in [low, high) are equal: then the number of them passed by is a division.
    → (id, mass up to and including it).
    """
    low_count, low_mass = _reaching(source, best, sharp, low, SHAPE, SIZES)
    top_count, top_mass = _reaching(source, best, sharp, top, SHAPE, SIZES)
    high = logit_of(ordered(top, tl.zeros_like(top).to(tl.int32)) + (1 << 32))
    going = goal >= tl.where(by_mass, top_mass, top_count)
    high_count = top_count
    high_mass = top_mass
    if going:
        high = top
    else:
        low = top
        low_count = top_count
        low_mass = top_mass
        high_count, high_mass = _reaching(source, best, sharp, high, SHAPE, SIZES)
    while going:
        middle = low * 0.5 + high * 0.5
        going = (middle > low) & (middle < high)
        if going:
            count, mass = _reaching(source, best, sharp, middle, SHAPE, SIZES)
            if tl.where(by_mass, mass, count) > goal:
                low = middle
                low_count = count
                low_mass = mass
            else:
                high = middle
                high_count = count
                high_mass = mass
            going = low_count - high_count > 1
    inside = tl.maximum(low_count - high_count, 1)
    each = (low_mass - high_mass) // inside
    nth = tl.where(by_mass, (goal - high_mass) // tl.maximum(each, 1), goal - high_count)
    nth = tl.minimum(nth, inside - 1)
    token = _member(source, low, high, nth, SHAPE, SIZES[2])
    return token, high_mass + (nth + 1) * each


@triton.jit
def _member(
    source: tl.tuple,
    low: tl.tensor,
    high: tl.tensor,
    wanted: tl.tensor,
    SHAPE: tl.constexpr,
    WIDTH: tl.constexpr,
) -> tl.tensor:
    """Id of token number `wanted` of those with a logit in [low, high)."""
    token = tl.zeros_like(wanted)
    before = tl.zeros_like(wanted)
    for first in range(0, SHAPE[0], WIDTH):
        column = first + tl.arange(0, WIDTH)
        x = edited_logits(source, column, column < SHAPE[0], SHAPE)
        is_in = (x >= low) & (x < high)
        index = before + tl.cumsum(is_in.to(tl.int32), axis=0).to(tl.int64) - 1
        token += tl.sum(tl.where(is_in & (index == wanted), column, 0), axis=0).to(tl.int64)
        before += tl.sum(is_in.to(tl.int32), axis=0).to(tl.int64)
    return token


@triton.jit
def _answer(
    source: tl.tuple,
    table: tl.tensor,
    picked: tl.tensor,
    found: tl.tensor,
    question: tl.tensor,
    best: tl.tensor,
    bins: tl.tensor,
    goal: tl.tensor,
    SHAPE: tl.constexpr,
    SIZES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The token at place `goal` → (id, mass up to and including it)."""
    BINS: tl.constexpr = SIZES[0]
    by_mass = question > 0
    sharp = sharpness(float_field(source[4], source[3], TEMPERATURE))
    place = tl.arange(0, BINS)
    mass = tl.load(table + place)
    size = mass
    if not by_mass:
        size = tl.load(table + BINS + place)
    wanted = tl.sum((tl.cumsum(size, axis=0) <= goal).to(tl.int32), axis=0)
    wanted = tl.minimum(wanted, BINS - 1)
    mass_before = tl.sum(tl.where(place < wanted, mass, 0), axis=0)
    size_before = tl.sum(tl.where(place < wanted, size, 0), axis=0)
    counters = table + 2 * BINS + 1 + 2 * question
    count = gather(source, best, bins, wanted, counters, picked, found, SHAPE, SIZES)
    token = goal * 0
    kept = goal * 0
    if count > SIZES[1]:
        low, top = span_of(source, best, bins, wanted, SHAPE, SIZES)
        token, kept = _narrow(source, best, sharp, low, top, goal, by_mass, SHAPE, SIZES)
    else:
        rank = tl.arange(0, SIZES[1])
        packed = sort_found(found, count.to(tl.int32), SIZES[1])
        inside = tl.where(rank < count, units(weigh(logit_of(packed), best, sharp)), 0)
        reached = mass_before + tl.cumsum(inside, axis=0)
        passed = tl.sum(((reached <= goal) & (rank < count)).to(tl.int32), axis=0).to(tl.int64)
        index = tl.minimum(tl.where(by_mass, passed, goal - size_before), count - 1)
        token = tl.sum(tl.where(rank == index, token_of(packed), 0), axis=0).to(tl.int64)
        kept = tl.sum(tl.where(rank == index, reached, 0), axis=0)
    return token, kept


@triton.jit
def search_tokens(
    logits: tl.tensor,
    split_stride: tl.tensor,
    slots: tl.tensor,
    rows: tl.tensor,
    counts: tl.tensor,
    bias: tl.tensor,
    positions: tl.tensor,
    bounds: tl.tensor,
    tables: tl.tensor,
    picked: tl.tensor,
    found: tl.tensor,
    sampled: tl.tensor,
    POSITION_STRIDE: tl.constexpr,
    SHAPE: tl.constexpr,
    SIZES: tl.constexpr,
) -> None:
    """Grid (R,): the draw of rows under search; the others return at once.

    Questions 0, 1 and 2 ask for the last of the top-k, of the top-p, and the token; each reads the row.
    """
    row = tl.program_id(0)
    best = tl.load(bounds + 2 * row)
    bins = tl.load(bounds + 2 * row + 1)
    if bins > 0:
        slot = tl.load(slots + row).to(tl.int64)
        source = (logits, split_stride, row, slot, rows, counts, bias)
        table = tables + row * (2 * SIZES[0] + 8)
        top_p = float_field(rows, slot, TOP_P).to(tl.float64)
        top_k = kept_by_top_k(rows, slot, SHAPE[0]).to(tl.int64)
        drawn = uniform(rows, slot, tl.load(positions + slot * POSITION_STRIDE))
        place = tl.arange(0, SIZES[0])
        kept = tl.sum(tl.load(table + place), axis=0)
        token = kept * 0
        for question in range(3):
            goal = top_k - 1
            asked = (top_k > 0) & (top_k < tl.sum(tl.load(table + SIZES[0] + place), axis=0))
            if question == 1:
                asked = top_p < 1
                goal = tl.ceil(top_p * kept.to(tl.float64)).to(tl.int64) - 1
            if question == 2:
                asked = top_k >= 0
                kept = tl.minimum(kept, tl.load(table + 2 * SIZES[0]))
                goal = (drawn * kept.to(tl.float64)).to(tl.int64)
            if question > 0:
                goal = tl.maximum(tl.minimum(goal, kept - 1), 0)
            if asked:
                token, mass = _answer(
                    source,
                    table,
                    picked + row * SIZES[1],
                    found + row * SIZES[1],
                    question,
                    best,
                    bins,
                    goal,
                    SHAPE,
                    SIZES,
                )
                kept = tl.minimum(kept, mass)
        tl.store(sampled + row, token.to(tl.int32))
