"""The draw of a row from its whole vocabulary, by narrowing down where in the order it falls.

For rows that the best tokens do not decide: many tokens kept, or many equal ones. Every question,
which token is the last of the top-k, of the top-p, and which is drawn, asks for the token at a place
in the order of logits, counted in tokens or in weight. Passes over the row split the values in four
until those left are equal. Counts and weights are integers, so the answer is exact.
"""

import triton
import triton.language as tl

from kernels.sampler_logits import LOWEST, UNIT, edited_logits, weigh
from kernels.sampler_state import FIELDS, MIN_P, TEMPERATURE, TOP_K, TOP_P, float_field, uniform


@triton.jit
def _weights(
    source: tl.tuple,
    first: tl.tensor,
    best: tl.tensor,
    temperature: tl.tensor,
    SHAPE: tl.constexpr,
    UNROLL: tl.constexpr,
    WIDTH: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Logits and weights of the tile of tokens that starts at `first`."""
    column = first + tl.arange(0, UNROLL)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    x = edited_logits(source, column, column < SHAPE[0], SHAPE)
    return x, weigh(x, best, temperature)


@triton.jit
def _totals(
    source: tl.tuple,
    best: tl.tensor,
    temperature: tl.tensor,
    min_p: tl.tensor,
    SHAPE: tl.constexpr,
    UNROLL: tl.constexpr,
    WIDTH: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """→ (mass of all tokens, mass of those that min-p keeps, least finite logit)."""
    mass = tl.zeros((WIDTH,), tl.int64)
    likely = tl.zeros((WIDTH,), tl.int64)
    least = tl.zeros((WIDTH,), tl.float32) + best
    for first in range(0, SHAPE[0], WIDTH * UNROLL):
        x, weight = _weights(source, first, best, temperature, SHAPE, UNROLL, WIDTH)
        units = (weight * UNIT).to(tl.int64)
        mass += tl.sum(units, axis=0)
        likely += tl.sum(tl.where(weight >= min_p, units, 0), axis=0)
        least = tl.minimum(least, tl.min(tl.where(x >= LOWEST, x, best), axis=0))
    return tl.sum(mass, axis=0), tl.sum(likely, axis=0), tl.min(least, axis=0)


@triton.jit
def _reaching(
    source: tl.tuple,
    best: tl.tensor,
    temperature: tl.tensor,
    low: tl.tensor,
    middle: tl.tensor,
    high: tl.tensor,
    SHAPE: tl.constexpr,
    UNROLL: tl.constexpr,
    WIDTH: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Tokens with logits >= each of three values, and their mass."""
    count_low = tl.zeros((WIDTH,), tl.int32)
    count_middle = tl.zeros((WIDTH,), tl.int32)
    count_high = tl.zeros((WIDTH,), tl.int32)
    mass_low = tl.zeros((WIDTH,), tl.int64)
    mass_middle = tl.zeros((WIDTH,), tl.int64)
    mass_high = tl.zeros((WIDTH,), tl.int64)
    for first in range(0, SHAPE[0], WIDTH * UNROLL):
        x, weight = _weights(source, first, best, temperature, SHAPE, UNROLL, WIDTH)
        units = (weight * UNIT).to(tl.int64)
        count_low += tl.sum((x >= low).to(tl.int32), axis=0)
        count_middle += tl.sum((x >= middle).to(tl.int32), axis=0)
        count_high += tl.sum((x >= high).to(tl.int32), axis=0)
        mass_low += tl.sum(tl.where(x >= low, units, 0), axis=0)
        mass_middle += tl.sum(tl.where(x >= middle, units, 0), axis=0)
        mass_high += tl.sum(tl.where(x >= high, units, 0), axis=0)
    return (
        tl.sum(count_low, axis=0).to(tl.int64),
        tl.sum(count_middle, axis=0).to(tl.int64),
        tl.sum(count_high, axis=0).to(tl.int64),
        tl.sum(mass_low, axis=0),
        tl.sum(mass_middle, axis=0),
        tl.sum(mass_high, axis=0),
    )


@triton.jit
def _locate(
    source: tl.tuple,
    best: tl.tensor,
    temperature: tl.tensor,
    least: tl.tensor,
    total: tl.tensor,
    goal: tl.tensor,
    by_mass: tl.tensor,
    SHAPE: tl.constexpr,
    UNROLL: tl.constexpr,
    WIDTH: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """The tokens of equal logit around place `goal`, as [low, high) with what lies before them.

    → (low, high, tokens before, mass before, tokens in it, mass of each).
    """
    low = least
    low_count = tl.zeros_like(goal) + SHAPE[0]
    low_mass = total
    high = best
    at_best, _, _, mass_at_best, _, _ = _reaching(
        source, best, temperature, best, best, best, SHAPE, UNROLL, WIDTH
    )
    high_count = at_best
    high_mass = mass_at_best
    going = goal >= tl.where(by_mass, high_mass, high_count)
    if not going:
        low = best
        high = tl.zeros_like(best) + float("inf")
        low_count = at_best
        low_mass = mass_at_best
        high_count = tl.zeros_like(goal)
        high_mass = tl.zeros_like(goal)
    while going:
        q2 = low * 0.5 + high * 0.5
        q1 = low * 0.5 + q2 * 0.5
        q3 = q2 * 0.5 + high * 0.5
        c1, c2, c3, m1, m2, m3 = _reaching(source, best, temperature, q1, q2, q3, SHAPE, UNROLL, WIDTH)
        going = (q2 > low) & (q2 < high)
        if going:
            for_q1 = tl.where(by_mass, m1, c1) > goal
            for_q2 = tl.where(by_mass, m2, c2) > goal
            for_q3 = tl.where(by_mass, m3, c3) > goal
            high = tl.where(for_q3, high, tl.where(for_q2, q3, tl.where(for_q1, q2, q1)))
            high_count = tl.where(for_q3, high_count, tl.where(for_q2, c3, tl.where(for_q1, c2, c1)))
            high_mass = tl.where(for_q3, high_mass, tl.where(for_q2, m3, tl.where(for_q1, m2, m1)))
            low = tl.where(for_q3, q3, tl.where(for_q2, q2, tl.where(for_q1, q1, low)))
            low_count = tl.where(for_q3, c3, tl.where(for_q2, c2, tl.where(for_q1, c1, low_count)))
            low_mass = tl.where(for_q3, m3, tl.where(for_q2, m2, tl.where(for_q1, m1, low_mass)))
            going = low_count - high_count > 1
    inside = tl.maximum(low_count - high_count, 1)
    return low, high, high_count, high_mass, inside, (low_mass - high_mass) // inside


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
def _search(
    source: tl.tuple,
    best: tl.tensor,
    position: tl.tensor,
    SHAPE: tl.constexpr,
    UNROLL: tl.constexpr,
    WIDTH: tl.constexpr,
) -> tl.tensor:
    """The draw: questions 0, 1 and 2 ask for the last of the top-k, of the top-p, and the token."""
    rows = source[4]
    slot = source[3]
    temperature = float_field(rows, slot, TEMPERATURE)
    top_p = float_field(rows, slot, TOP_P)
    min_p = float_field(rows, slot, MIN_P)
    top_k = tl.load(rows + slot * FIELDS + TOP_K).to(tl.int64)
    total, likely, least = _totals(source, best, temperature, min_p, SHAPE, UNROLL, WIDTH)
    kept = total
    goal = top_k - 1
    token = tl.zeros_like(goal)
    for question in range(3):
        asked = question == 2
        if question == 0:
            asked = (top_k > 0) & (top_k < SHAPE[0])
        if question == 1:
            asked = top_p < 1.0
            goal = tl.ceil(top_p.to(tl.float64) * kept.to(tl.float64)).to(tl.int64) - 1
            goal = tl.minimum(tl.maximum(goal, 0), kept - 1)
        if question == 2:
            kept = tl.minimum(kept, likely)
            drawn = uniform(rows, slot, position)
            goal = tl.minimum((drawn * kept.to(tl.float64)).to(tl.int64), kept - 1)
        if asked:
            low, high, before, mass_before, inside, each = _locate(
                source, best, temperature, least, total, goal, question > 0, SHAPE, UNROLL, WIDTH
            )
            nth = goal - before
            if question > 0:
                nth = (goal - mass_before) // tl.maximum(each, 1)
            nth = tl.minimum(nth, inside - 1)
            kept = tl.minimum(kept, mass_before + (nth + 1) * each)
            if question == 2:
                token = _member(source, low, high, nth, SHAPE, WIDTH)
    return token


@triton.jit
def search_tokens(
    logits: tl.tensor,
    split_stride: tl.tensor,
    slots: tl.tensor,
    rows: tl.tensor,
    counts: tl.tensor,
    bias: tl.tensor,
    positions: tl.tensor,
    group_max: tl.tensor,
    sampled: tl.tensor,
    pending: tl.tensor,
    POSITION_STRIDE: tl.constexpr,
    SHAPE: tl.constexpr,
    GROUPS: tl.constexpr,
    PADDED: tl.constexpr,
    UNROLL: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Grid (R,): returns at once unless its row is pending; else about ten passes a question."""
    row = tl.program_id(0)
    if tl.load(pending + row) != 0:
        slot = tl.load(slots + row).to(tl.int64)
        group = tl.arange(0, PADDED)
        maxima = tl.load(group_max + row * GROUPS + group, mask=group < GROUPS, other=float("-inf"))
        source = (logits, split_stride, row, slot, rows, counts, bias)
        position = tl.load(positions + slot * POSITION_STRIDE)
        token = _search(source, tl.max(maxima, axis=0), position, SHAPE, UNROLL, WIDTH)
        tl.store(sampled + row, token.to(tl.int32))
