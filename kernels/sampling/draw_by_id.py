"""The draw of rows that keep a share of all tokens, in order of ids, as `kernels.reference.sampler` has it.

Such a row needs no order of logits: the masses of groups of neighbouring tokens lead to the group where
the uniform number falls, and the group's tokens to the token. What a min-p keeps is added up group by
group first. With a top-p it is rejection sampling: several tokens are drawn from the whole row at once,
the mass of what comes before each in the order of logits is added up in one pass, and the first one that
is kept is taken.
"""

import triton
import triton.language as tl

from kernels.reference.sampler import LEAST_REJECTION_TOP_P, MOST_TRIES
from kernels.sampling.histogram_ranges import drawn_goal
from kernels.sampling.logits import (
    edit_logits,
    edited_logits,
    logit_of,
    ordered,
    raw_logits,
    token_of,
    units,
    weigh,
)
from kernels.state.sampler_state import MIN_P, TOP_P, float_field, kept_by_top_k, next_uniform

IN_ORDER = tl.constexpr(0)
FROM_ALL = tl.constexpr(1)
BY_MIN_P = tl.constexpr(2)
BY_REJECTION = tl.constexpr(3)
"""Kinds of drawn rows: from the best token down; by id from all, from what a min-p keeps, or by rejection
until a token is met that a top-p keeps."""

TRIES = tl.constexpr(8)
"""Tokens drawn at once, at most."""
_MORE_TRIES = tl.constexpr(2)
"""Tokens that one program looks at in a pass when none of these is kept."""
_MOST_TRIES = tl.constexpr(MOST_TRIES)
_LEAST_REJECTION_TOP_P = tl.constexpr(LEAST_REJECTION_TOP_P)
_LEFT_OPEN = tl.constexpr(-11.5)
"""Logarithm of how seldom none of the tokens drawn at once may be kept; the next then cost a pass each."""


@triton.jit
def kind_of(rows: tl.tensor, slot: tl.tensor, VOCAB: tl.constexpr) -> tl.tensor:
    """How a drawn row's token is found: by its parameters alone."""
    top_p = float_field(rows, slot, TOP_P)
    likely = float_field(rows, slot, MIN_P) > 0
    cut = tl.where(likely | (top_p < _LEAST_REJECTION_TOP_P), IN_ORDER, BY_REJECTION)
    kind = tl.where(top_p < 1, cut, tl.where(likely, BY_MIN_P, FROM_ALL))
    return tl.where(kept_by_top_k(rows, slot, VOCAB) == 0, kind, IN_ORDER)


@triton.jit
def _wanted_tries(top_p: tl.tensor) -> tl.tensor:
    """Tokens drawn at once, so that one of them is nearly always kept."""
    wanted = (1.0 / tl.log(tl.maximum(1.0 - top_p, 1e-7)) * _LEFT_OPEN).to(tl.int32) + 1
    return tl.minimum(wanted, TRIES)


@triton.jit
def group_masses(maxima: tl.tensor, sums: tl.tensor, best: tl.tensor, inv_temp: tl.tensor) -> tl.tensor:
    """int64 mass of each group from its maximum and its sum of weights relative to that."""
    return units(weigh(maxima, best, inv_temp) * sums)


@triton.jit
def _groups_at(
    cumulative: tl.tensor, drawn: tl.tensor, first: tl.tensor, wanted: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Where the row's numbers from `first` on fall among its groups' masses.

    → (group, mass before it, place), each [TRIES].
    """
    attempt = tl.arange(0, TRIES)
    total = tl.max(cumulative, axis=0)
    group = tl.zeros((TRIES,), tl.int32)
    before = tl.zeros((TRIES,), tl.int64)
    goals = before
    for i in range(wanted):
        goal = drawn_goal(next_uniform(drawn, first + i), total)
        passed = cumulative <= goal
        own = attempt == i
        group = tl.where(own, tl.sum(passed.to(tl.int32), axis=0), group)
        before = tl.where(own, tl.max(tl.where(passed, cumulative, 0), axis=0), before)
        goals = tl.where(own, goal, goals)
    return group, before, goals


@triton.jit
def tokens_at(
    source: tl.tuple,
    cumulative: tl.tensor,
    best: tl.tensor,
    inv_temp: tl.tensor,
    min_p: tl.tensor,
    drawn: tl.tensor,
    first: tl.tensor,
    wanted: tl.tensor,
    SHAPE: tl.constexpr,
    GROUP: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """`wanted` tokens drawn by id with the row's numbers from `first` on, by groups' `cumulative` masses.

    → (`ordered` tokens, mass of those before each in its own group by the order of logits), [TRIES].
    """
    attempt = tl.arange(0, TRIES)
    place = tl.arange(0, GROUP)[None, :]
    group, before, goals = _groups_at(cumulative, drawn, first, wanted)
    column = group[:, None] * GROUP + place
    x = edited_logits(source, column, (column < SHAPE[0]) & (attempt < wanted)[:, None], SHAPE)
    weight = weigh(x, best, inv_temp)
    mass = tl.where(weight >= min_p, units(weight), 0)
    reached = before[:, None] + tl.cumsum(mass, axis=1)
    index = tl.sum((reached <= goals[:, None]).to(tl.int32), axis=1)
    # A group's mass and its tokens' masses are rounded apart, and the latter may all be 0.
    last = tl.max(tl.where(mass > 0, place, -1), axis=1)
    index = tl.where(last < 0, tl.argmax(x, axis=1), tl.minimum(index, last))
    logit = tl.sum(tl.where(place == index[:, None], x, 0.0), axis=1)
    drawn_tokens = ordered(logit, group * GROUP + index)
    earlier = ordered(x, column) > drawn_tokens[:, None]
    return drawn_tokens, tl.sum(tl.where(earlier, mass, 0), axis=1)


@triton.jit
def draw_by_id(
    source: tl.tuple,
    maxima: tl.tensor,
    sums: tl.tensor,
    best: tl.tensor,
    inv_temp: tl.tensor,
    drawn: tl.tensor,
    kind: tl.tensor,
    found: tl.tensor,
    table: tl.tensor,
    SHAPE: tl.constexpr,
    SIZES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The token of a row of a kind by id, if the groups' statistics decide.

    → (id, whether they do not, tokens drawn). Else `found` has these, and `table` is cleared for their
    masses. SIZES is that of `kernels.sampling.candidates`.
    """
    top_p = float_field(source[4], source[3], TOP_P)
    wanted = tl.where(kind == BY_REJECTION, _wanted_tries(top_p), 1)
    masses = group_masses(maxima, sums, best, inv_temp)
    cumulative = tl.cumsum(masses, axis=0)
    attempt = tl.arange(0, TRIES)
    tokens, in_group = tokens_at(
        source, cumulative, best, inv_temp, 0.0, drawn, wanted - wanted, wanted, SHAPE, SIZES[1]
    )
    token = tl.max(tl.where(attempt == 0, token_of(tokens), 0), axis=0)
    left = kind == BY_MIN_P
    if kind == BY_REJECTION:
        tl.store(found + attempt, tokens)
        tl.store(table + tl.arange(0, 2 * TRIES), tl.zeros((2 * TRIES,), tl.int64))
        first = tl.max(tl.where(attempt == 0, tokens, -(1 << 63)), axis=0)
        # All of another group whose best token comes earlier: more than can be before this one.
        group = tl.arange(0, SIZES[2])
        best_of_group = ordered(maxima, group * SIZES[1])
        others = (best_of_group > first) & (group != token // SIZES[1])
        most = tl.sum(tl.where(others, masses, 0), axis=0)
        most += tl.sum(tl.where(attempt == 0, in_group, 0), axis=0)
        limit = top_p.to(tl.float64) * tl.max(cumulative, axis=0).to(tl.float64)
        left = most.to(tl.float64) >= limit
    return token, left, wanted


@triton.jit
def masses_before(
    source: tl.tuple,
    found: tl.tensor,
    wanted: tl.tensor,
    best: tl.tensor,
    inv_temp: tl.tensor,
    program: tl.tensor,
    programs: tl.tensor,
    SHAPE: tl.constexpr,
    TILE: tl.constexpr,
    MOST: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Of every `programs`-th tile: mass of the tokens before each of `wanted` <= MOST found, and of all.

    → int64 ([TRIES], scalar).
    """
    logits: tl.tuple = ()
    tokens: tl.tuple = ()
    sums: tl.tuple = ()
    for i in tl.static_range(MOST):
        packed = tl.load(found + i)
        logits = logits + (logit_of(packed),)
        tokens = tokens + (token_of(packed),)
        sums = sums + (tl.zeros((TILE,), tl.int64),)
    total = tl.zeros((TILE,), tl.int64)
    lanes = tl.arange(0, TILE)
    ahead = program * TILE + lanes
    coming = raw_logits(source, ahead, ahead < SHAPE[0], SHAPE)
    for first in range(program * TILE, SHAPE[0], programs * TILE):
        column = first + lanes
        ahead = column + programs * TILE
        x = edit_logits(coming, source, column, column < SHAPE[0], SHAPE)
        coming = raw_logits(source, ahead, ahead < SHAPE[0], SHAPE)
        mass = units(weigh(x, best, inv_temp))
        total += mass
        more: tl.tuple = ()
        for i in tl.static_range(MOST):
            part = sums[i]
            if i < wanted:
                earlier = (x > logits[i]) | ((x == logits[i]) & (column < tokens[i]))
                part += tl.where(earlier, mass, 0)
            more = more + (part,)
        sums = more
    attempt = tl.arange(0, TRIES)
    before = tl.zeros((TRIES,), tl.int64)
    for i in tl.static_range(MOST):
        if i < wanted:
            before = tl.where(attempt == i, tl.sum(sums[i], axis=0), before)
    return before, tl.sum(total, axis=0)


@triton.jit
def _first_kept(
    before: tl.tensor, total: tl.tensor, found: tl.tensor, top_p: tl.tensor, wanted: tl.tensor
) -> tl.tensor:
    """Id of the first token drawn that the top-p keeps, or -1."""
    attempt = tl.arange(0, TRIES)
    kept = (before.to(tl.float64) < top_p.to(tl.float64) * total.to(tl.float64)) & (attempt < wanted)
    first = tl.min(tl.where(kept, attempt, TRIES), axis=0)
    tokens = token_of(tl.load(found + attempt))
    return tl.max(tl.where(attempt == first, tokens, -1), axis=0)


@triton.jit
def rejection_token(
    source: tl.tuple,
    statistics: tl.tensor,
    plane: tl.tensor,
    best: tl.tensor,
    inv_temp: tl.tensor,
    drawn: tl.tensor,
    wanted: tl.tensor,
    found: tl.tensor,
    table: tl.tensor,
    SHAPE: tl.constexpr,
    SIZES: tl.constexpr,
) -> tl.tensor:
    """The first of the `wanted` tokens drawn that is kept, by the masses in `table`; else draws more.

    One program does that. SIZES is that of `kernels.sampling.search`.
    """
    top_p = float_field(source[4], source[3], TOP_P)
    attempt = tl.arange(0, TRIES)
    token = _first_kept(tl.load(table + attempt), tl.load(table + TRIES), found, top_p, wanted)
    group = tl.arange(0, SIZES[6])
    if token < 0:
        first = wanted
        while (token < 0) & (first < _MOST_TRIES):
            wanted = tl.minimum(first * -1 + _MOST_TRIES, _MORE_TRIES)
            maxima = tl.load(statistics + group, mask=group < SIZES[4], other=float("-inf"))
            sums = tl.load(statistics + plane + group, mask=group < SIZES[4], other=0.0)
            cumulative = tl.cumsum(group_masses(maxima, sums, best, inv_temp), axis=0)
            tokens, _ = tokens_at(
                source, cumulative, best, inv_temp, 0.0, drawn, first, wanted, SHAPE, SIZES[5]
            )
            # Other threads read what one has written.
            tl.debug_barrier()
            tl.store(found + attempt, tokens)
            tl.debug_barrier()
            before, total = masses_before(
                source, found, wanted, best, inv_temp, 0, 1, SHAPE, SIZES[3], _MORE_TRIES
            )
            token = _first_kept(before, total, found, top_p, wanted)
            first += wanted
    if token < 0:
        maxima = tl.load(statistics + group, mask=group < SIZES[4], other=float("-inf"))
        home = tl.argmax(maxima, axis=0)
        column = home * SIZES[5] + tl.arange(0, SIZES[5])
        token = home * SIZES[5] + tl.argmax(edited_logits(source, column, column < SHAPE[0], SHAPE), axis=0)
    return token


@triton.jit
def min_p_masses(
    source: tl.tuple,
    best: tl.tensor,
    inv_temp: tl.tensor,
    table: tl.tensor,
    SHAPE: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Mass of what min-p keeps of each group, to `table`; a program takes every P-th tile of groups."""
    HEIGHT: tl.constexpr = max(1, TILE // GROUP)
    min_p = float_field(source[4], source[3], MIN_P)
    for first in range(tl.program_id(0) * HEIGHT, tl.cdiv(SHAPE[0], GROUP), tl.num_programs(0) * HEIGHT):
        group = first + tl.arange(0, HEIGHT)
        column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        weight = weigh(edited_logits(source, column, column < SHAPE[0], SHAPE), best, inv_temp)
        mass = tl.sum(tl.where(weight >= min_p, units(weight), 0), axis=1)
        tl.store(table + group, mass, mask=group * GROUP < SHAPE[0])


@triton.jit
def min_p_token(
    source: tl.tuple,
    best: tl.tensor,
    inv_temp: tl.tensor,
    drawn: tl.tensor,
    table: tl.tensor,
    SHAPE: tl.constexpr,
    SIZES: tl.constexpr,
) -> tl.tensor:
    """The token by the masses that `min_p_masses` wrote. SIZES is that of `kernels.sampling.search`."""
    group = tl.arange(0, SIZES[6])
    cumulative = tl.cumsum(tl.load(table + group, mask=group < SIZES[4], other=0), axis=0)
    min_p = float_field(source[4], source[3], MIN_P)
    one = tl.program_id(0) + 1
    tokens, _ = tokens_at(source, cumulative, best, inv_temp, min_p, drawn, one - 1, one, SHAPE, SIZES[5])
    return tl.max(tl.where(tl.arange(0, TRIES) == 0, token_of(tokens), 0), axis=0)
