"""The draw of a row from its whole vocabulary, by narrowing down where in the order it falls.

For rows in order of logits that the best tokens do not decide: many tokens kept, or many equal ones (for
others see `kernels.sampling.draw_by_id`). Every question,
which token is the last of the top-k, of the top-p, and which is drawn, asks for the token at a place
in the order of logits, counted in tokens or in weight. Bins of logits say where it lies
(`kernels.sampling.histogram_ranges`), and the few tokens of these bins are listed. A bin of more tokens
than fit is split until those left are equal. Counts and weights are integers, so sums in any order are
the same.

SIZES is (bins, tokens listed at most, tokens that a program looks at in one step, the same where one
program goes through a whole row, groups, tokens of a group, groups padded to a power of two).
"""

import triton
import triton.language as tl

from kernels.cuda.early import let_next_start, wait_for_inputs
from kernels.sampling.draw import BOUNDS, BY_HISTOGRAM, bounds_of
from kernels.sampling.draw_by_id import BY_MIN_P, min_p_token, rejection_token
from kernels.sampling.histogram import list_ranges, span_of
from kernels.sampling.histogram_ranges import bin_at, drawn_goal, locate, top_p_goal
from kernels.sampling.logits import (
    edited_logits,
    inverse_temperature,
    logit_of,
    ordered,
    token_of,
    units,
    weigh,
)
from kernels.state.sampler_state import TEMPERATURE, TOP_P, float_field, kept_by_top_k, uniform


@triton.jit
def _reaching(
    source: tl.tuple,
    best: tl.tensor,
    inv_temp: tl.tensor,
    least: tl.tensor,
    SHAPE: tl.constexpr,
    SIZES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Tokens with a logit >= `least`, and their mass."""
    WIDTH: tl.constexpr = SIZES[3]
    count = tl.zeros((WIDTH,), tl.int32)
    mass = tl.zeros((WIDTH,), tl.int64)
    for first in range(0, SHAPE[0], WIDTH):
        column = first + tl.arange(0, WIDTH)
        x = edited_logits(source, column, column < SHAPE[0], SHAPE)
        count += (x >= least).to(tl.int32)
        mass += tl.where(x >= least, units(weigh(x, best, inv_temp)), 0)
    return tl.sum(count, axis=0).to(tl.int64), tl.sum(mass, axis=0)


@triton.jit
def _bisect(
    source: tl.tuple,
    best: tl.tensor,
    inv_temp: tl.tensor,
    low: tl.tensor,
    top: tl.tensor,
    goal: tl.tensor,
    by_mass: tl.tensor,
    SHAPE: tl.constexpr,
    SIZES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The answer among the tokens with logits in [low, top], too many to list.

    Splits until all tokens in [low, high) are equal: then the number of them passed by is a division.
    → (id, mass up to and including it).
    """
    high = logit_of(ordered(top, tl.zeros_like(top).to(tl.int32)) + (1 << 32))
    low_count = tl.zeros_like(goal)
    low_mass = tl.zeros_like(goal)
    high_count = tl.zeros_like(goal)
    high_mass = tl.zeros_like(goal)
    # Not `low` itself: Triton takes a name that the loop gives the value of another as unchanged where both
    # began as one.
    place = low + 0.0
    step = tl.zeros_like(goal).to(tl.int32)
    going = step == 0
    # The least, the largest logit, what is above it if it is the answer, then halves: one place in the
    # code for all of them, since compilers take long for it.
    while going:
        count, mass = _reaching(source, best, inv_temp, place, SHAPE, SIZES)
        reached = tl.where(by_mass, mass, count) > goal
        if (step == 0) | ((step != 2) & reached):
            low = place
            low_count = count
            low_mass = mass
        else:
            high = place
            high_count = count
            high_mass = mass
        middle = low * 0.5 + high * 0.5
        halved = (middle > low) & (middle < high) & (low_count - high_count > 1)
        going = (step == 0) | ((step == 1) & reached) | ((step != 2) & (step > 0) & halved)
        place = tl.where(step == 0, top, tl.where((step == 1) & reached, high, middle))
        step = tl.where(step == 0, 1, tl.where((step == 1) & reached, 2, tl.where(step == 2, 2, 3)))
    inside = tl.maximum(low_count - high_count, 1)
    each = (low_mass - high_mass) // inside
    nth = tl.where(by_mass, (goal - high_mass) // tl.maximum(each, 1), goal - high_count)
    nth = tl.minimum(nth, inside - 1)
    token = _member(source, low, high, nth, SHAPE, SIZES[3])
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
    token = tl.zeros_like(wanted).to(tl.int32)
    before = token
    for first in range(0, SHAPE[0], WIDTH):
        column = first + tl.arange(0, WIDTH)
        x = edited_logits(source, column, column < SHAPE[0], SHAPE)
        is_in = (x >= low) & (x < high)
        index = before + tl.cumsum(is_in.to(tl.int32), axis=0) - 1
        token += tl.sum(tl.where(is_in & (index == wanted.to(tl.int32)), column, 0), axis=0)
        before += tl.sum(is_in.to(tl.int32), axis=0)
    return token.to(tl.int64)


@triton.jit
def _last_reaching(
    keys: tl.tensor, measure: tl.tensor, passed: tl.tensor, low: tl.tensor, high: tl.tensor
) -> tl.tensor:
    """The largest key in [low, high) whose entries and those above measure more than `passed`, or `low`."""
    going = low < high
    while going:
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        going = middle != low
        if tl.sum(tl.where(keys >= middle, measure, 0), axis=0) > passed:
            low = middle
        elif going:
            high = middle
    return low


@triton.jit
def _at_goal(
    listed: tl.tensor,
    count: tl.tensor,
    best: tl.tensor,
    inv_temp: tl.tensor,
    goal: tl.tensor,
    mass_before: tl.tensor,
    size_before: tl.tensor,
    by_mass: tl.tensor,
    SIZE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The answer among `count` <= SIZE listed tokens → (id, mass up to and including it).

    The place in their order is found by halving, among logits and then among equal ones: quicker than
    sorting them.
    """
    rank = tl.arange(0, SIZE)
    inside = rank < count
    packed = tl.load(listed + rank, mask=inside, other=-(1 << 63))
    mass = tl.where(inside, units(weigh(logit_of(packed), best, inv_temp)), 0)
    measure = tl.where(by_mass, mass, inside.to(tl.int64))
    passed = goal - tl.where(by_mass, mass_before, size_before)
    logit = packed >> 32
    high = tl.max(logit, axis=0) + 1
    low = tl.min(tl.where(inside, logit, high), axis=0)
    found = _last_reaching(logit, measure, passed, low, high)
    equal = inside & (logit == found)
    entry = tl.max(tl.where(equal, packed, -(1 << 63)), axis=0)
    if tl.sum(equal.to(tl.int32), axis=0) > 1:
        least = tl.min(tl.where(equal, packed, entry), axis=0)
        entry = _last_reaching(packed, measure, passed, least, entry + 1)
    return token_of(entry).to(tl.int64), mass_before + tl.sum(tl.where(packed >= entry, mass, 0), axis=0)


@triton.jit
def _answer(
    source: tl.tuple,
    table: tl.tensor,
    listed: tl.tensor,
    count: tl.tensor,
    best: tl.tensor,
    per_logit: tl.tensor,
    floor: tl.tensor,
    goal: tl.tensor,
    mass_before: tl.tensor,
    size_before: tl.tensor,
    by_mass: tl.tensor,
    SHAPE: tl.constexpr,
    SIZES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The token at place `goal`, with the tokens of the bins where it may lie listed, if they fit.

    → (id, mass up to and including it).
    """
    # As many as lanes: the usual number, and no warp needs another one for its sums.
    FEW: tl.constexpr = min(32, SIZES[1])
    inv_temp = inverse_temperature(float_field(source[4], source[3], TEMPERATURE))
    token = goal * 0
    kept = goal * 0
    if count > SIZES[1]:
        wanted = bin_at(table, goal, by_mass, SIZES[0])
        low, top = span_of(source, best, per_logit, floor, wanted, SHAPE, SIZES)
        token, kept = _bisect(source, best, inv_temp, low, top, goal, by_mass, SHAPE, SIZES)
    elif count <= FEW:
        token, kept = _at_goal(listed, count, best, inv_temp, goal, mass_before, size_before, by_mass, FEW)
    else:
        token, kept = _at_goal(
            listed, count, best, inv_temp, goal, mass_before, size_before, by_mass, SIZES[1]
        )
    return token, kept


@triton.jit
def _last_answer(
    source: tl.tuple,
    table: tl.tensor,
    listed: tl.tensor,
    best: tl.tensor,
    per_logit: tl.tensor,
    floor: tl.tensor,
    located: tl.tuple,
    parameters: tl.tuple,
    SHAPE: tl.constexpr,
    SIZES: tl.constexpr,
) -> tl.tensor:
    """Answer the questions one after another, each from what those before it keep; → the token's id.

    `located` is what `kernels.sampling.histogram_ranges.locate` gave, `parameters` is (top-k, top-p, uniform
    number, mass that min-p keeps).
    """
    ranges, masses, size_before, kept = located
    top_k, top_p, drawn, min_p_mass = parameters
    counters = table + 2 * SIZES[0] + 1
    token = kept * 0
    for question in range(3):
        asked = tl.where(question == 0, ranges[1] >= ranges[0], ranges[3] >= ranges[2])
        asked = asked | (question == 2)
        before = tl.where(question == 0, masses[0], tl.where(question == 1, masses[1], masses[2]))
        kept = tl.where(question == 2, tl.minimum(kept, min_p_mass), kept)
        place = tl.where(question == 1, top_p_goal(top_p, kept), drawn_goal(drawn, kept))
        goal = tl.where(question == 0, top_k - 1, place)
        if asked:
            own = listed + question * SIZES[1]
            count = tl.load(counters + question).to(tl.int32)
            by_mass = question > 0
            token, mass = _answer(
                source,
                table,
                own,
                count,
                best,
                per_logit,
                floor,
                goal,
                before,
                size_before,
                by_mass,
                SHAPE,
                SIZES,
            )
            kept = tl.minimum(kept, mass)
    return token


@triton.jit
def _search_bins(
    source: tl.tuple,
    best: tl.tensor,
    per_logit: tl.tensor,
    floor: tl.tensor,
    drawn: tl.tensor,
    table: tl.tensor,
    listed: tl.tensor,
    SHAPE: tl.constexpr,
    SIZES: tl.constexpr,
) -> tl.tensor:
    """List the tokens of the bins where the answers may lie; the last program answers → its id, else -1."""
    rows = source[4]
    slot = source[3]
    min_p_mass = tl.load(table + 2 * SIZES[0])
    counters = table + 2 * SIZES[0] + 1
    top_p = float_field(rows, slot, TOP_P).to(tl.float64)
    top_k = kept_by_top_k(rows, slot, SHAPE[0]).to(tl.int64)
    located = locate(table, min_p_mass, top_k, top_p, drawn, SIZES[0])
    list_ranges(source, best, per_logit, floor, located[0], listed, counters, SHAPE, SIZES)
    # All threads' entries must be written before one of them counts this program as done; the
    # release of that count publishes them, and the last program's acquire lets it see all lists.
    tl.debug_barrier()
    earlier = tl.atomic_add(counters + 3, 1, sem="acq_rel")
    token = top_k - top_k - 1
    if earlier == tl.num_programs(0) - 1:
        parameters = (top_k, top_p, drawn, min_p_mass)
        token = _last_answer(source, table, listed, best, per_logit, floor, located, parameters, SHAPE, SIZES)
    return token.to(tl.int32)


@triton.jit(do_not_specialize=["plane"])
def search_tokens(
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
    positions: tl.tensor,
    statistics: tl.tensor,
    plane: tl.tensor,
    listed: tl.tensor,
    sampled: tl.tensor,
    POSITION_STRIDE: tl.constexpr,
    SHAPE: tl.constexpr,
    SIZES: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """Grid (P, R): the draw of rows under search; the programs of others return at once.

    In order of logits, questions 0, 1 and 2 ask for the last of the top-k, of the top-p, and the token,
    and all programs of a row read it once. A draw by id takes one program that reads its table. listed
    int64 [R, 3, tokens listed at most]: in any order.
    """
    wait_for_inputs(EARLY)
    let_next_start(EARLY)
    row = tl.program_id(1)
    best, per_logit, floor, search = bounds_of(bounds + BOUNDS * row)
    if search > 0:
        slot = tl.load(slots + row).to(tl.int64)
        source = (logits, split_stride, row, slot, rows, counts, bias)
        table = tables + row * table_stride
        drawn = uniform(rows, slot, tl.load(positions + slot * POSITION_STRIDE))
        token = row - row - 1
        if search == BY_HISTOGRAM:
            own = listed + row * 3 * SIZES[1]
            token = _search_bins(source, best, per_logit, floor, drawn, table, own, SHAPE, SIZES)
        elif tl.program_id(0) == 0:
            inv_temp = inverse_temperature(float_field(rows, slot, TEMPERATURE))
            if search == BY_MIN_P:
                token = min_p_token(source, best, inv_temp, drawn, table, SHAPE, SIZES)
            else:
                own = statistics + row * SIZES[4]
                tried = found + row * SIZES[1]
                wanted = per_logit.to(tl.int32)
                token = rejection_token(
                    source, own, plane, best, inv_temp, drawn, wanted, tried, table, SHAPE, SIZES
                )
        if token >= 0:
            tl.store(sampled + row, token)
