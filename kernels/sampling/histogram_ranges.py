"""Where among a row's bins the answers of a search lie, before any of them is known.

What the top-k and the top-p keep is known to within the bin of their last token. Every further answer
lies later in the order the more is kept, so the least and the most that may be kept bound its bins:
nearly always one or two, and a row is read once for all answers.
"""

import triton
import triton.language as tl


@triton.jit
def top_p_goal(top_p: tl.tensor, kept: tl.tensor) -> tl.tensor:
    """Place in a mass `kept` > 0 of the last token of the top-p."""
    goal = tl.ceil(top_p * kept.to(tl.float64)).to(tl.int64) - 1
    return tl.maximum(tl.minimum(goal, kept - 1), 0)


@triton.jit
def drawn_goal(drawn: tl.tensor, kept: tl.tensor) -> tl.tensor:
    """Place in a mass `kept` > 0 of the token that is drawn."""
    goal = (drawn * kept.to(tl.float64)).to(tl.int64)
    return tl.maximum(tl.minimum(goal, kept - 1), 0)


WHOLE = tl.constexpr(5)
"""Where behind a row's bins the mass of all its tokens is, if some have none of the bins."""
_RUNS = tl.constexpr(32)
"""Runs of neighbouring bins that are added up first: a warp has one sum a lane, and needs no other warp
to go through them."""


@triton.jit
def _through_runs(measure: tl.tensor, BINS: tl.constexpr) -> tl.tensor:
    """int64 [RUNS]: `measure` of all bins up to and including each run."""
    WIDTH: tl.constexpr = BINS // _RUNS
    place = tl.arange(0, _RUNS)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    sums = tl.sum(tl.load(measure + place), axis=1)
    # A sum over runs leaves each in another warp; what is gathered by lanes is in the same.
    return tl.cumsum(tl.gather(sums, tl.arange(0, _RUNS), 0), axis=0)


@triton.jit
def _locate_one(
    measure: tl.tensor,
    reached: tl.tensor,
    mass: tl.tensor,
    mass_reached: tl.tensor,
    goal: tl.tensor,
    BINS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """The bin that place `goal` is in, the last one if it is in none.

    `reached` is `_through_runs` of `measure`, `mass_reached` that of `mass`. → (bin, measure of the bins
    before it, mass of those, mass of it).
    """
    WIDTH: tl.constexpr = BINS // _RUNS
    run = tl.arange(0, _RUNS)
    own = tl.minimum(tl.sum((reached <= goal).to(tl.int32), axis=0), _RUNS - 1)
    before = tl.max(tl.where(run < own, reached, 0), axis=0)
    mass_before = tl.max(tl.where(run < own, mass_reached, 0), axis=0)
    place = tl.arange(0, WIDTH)
    measures = tl.load(measure + own * WIDTH + place)
    masses = tl.load(mass + own * WIDTH + place)
    passed = before + tl.cumsum(measures, axis=0) <= goal
    index = tl.minimum(tl.sum(passed.to(tl.int32), axis=0), WIDTH - 1)
    before += tl.sum(tl.where(place < index, measures, 0), axis=0)
    mass_before += tl.sum(tl.where(place < index, masses, 0), axis=0)
    return own * WIDTH + index, before, mass_before, tl.sum(tl.where(place == index, masses, 0), axis=0)


@triton.jit
def bin_at(table: tl.tensor, goal: tl.tensor, by_mass: tl.tensor, BINS: tl.constexpr) -> tl.tensor:
    """The bin that place `goal` is in, counted in mass or in tokens."""
    measure = table + tl.where(by_mass, 0, BINS)
    reached = _through_runs(measure, BINS)
    wanted, _, _, _ = _locate_one(measure, reached, measure, reached, goal, BINS)
    return wanted


@triton.jit
def locate(
    table: tl.tensor,
    min_p_mass: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    drawn: tl.tensor,
    BINS: tl.constexpr,
) -> tuple[tl.tuple, tl.tuple, tl.tensor, tl.tensor]:
    """The bins that the questions of `kernels.sampling.search` have their answers in.

    → ((first and last bin of each question; the last before the first where it is not asked), (mass
    before each first bin), tokens before the first bin of question 0, mass of all bins).
    """
    sizes = table + BINS
    reached = _through_runs(table, BINS)
    total = tl.maximum(tl.max(reached, axis=0), tl.load(table + 2 * BINS + WHOLE))
    none = tl.zeros_like(total)
    least = total
    most = total
    first_k = none.to(tl.int32)
    last_k = first_k - 1
    first_p = first_k
    last_p = last_k
    mass_k = none
    mass_p = none
    size_before = none
    if top_k > 0:
        size_reached = _through_runs(sizes, BINS)
        if top_k < tl.max(size_reached, axis=0):
            first_k, size_before, mass_k, own = _locate_one(
                sizes, size_reached, table, reached, top_k - 1, BINS
            )
            last_k = first_k
            least = tl.maximum(mass_k, 1)
            most = mass_k + own
    if top_p < 1:
        first_p, _, mass_p, _ = _locate_one(table, reached, table, reached, top_p_goal(top_p, least), BINS)
        last_p, _, before, own = _locate_one(table, reached, table, reached, top_p_goal(top_p, most), BINS)
        least = tl.maximum(mass_p, 1)
        most = tl.minimum(most, before + own)
    low = drawn_goal(drawn, tl.minimum(least, min_p_mass))
    high = drawn_goal(drawn, tl.minimum(most, min_p_mass))
    first, _, mass_before, _ = _locate_one(table, reached, table, reached, low, BINS)
    last, _, _, _ = _locate_one(table, reached, table, reached, high, BINS)
    ranges = (first_k, last_k, first_p, last_p, first, last)
    return ranges, (mass_k, mass_p, mass_before), size_before, total
