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


@triton.jit
def _bin_of_goal(cumulative: tl.tensor, goal: tl.tensor, BINS: tl.constexpr) -> tl.tensor:
    """The bin that place `goal` is in."""
    return tl.minimum(tl.sum((cumulative <= goal).to(tl.int32), axis=0), BINS - 1)


@triton.jit
def _before(cumulative: tl.tensor, goal: tl.tensor, measure: tl.tensor) -> tl.tensor:
    """`measure`, cumulative too, of all bins before the one that place `goal` is in."""
    return tl.max(tl.where(cumulative <= goal, measure, 0), axis=0)


@triton.jit
def _through(cumulative: tl.tensor, goal: tl.tensor, measure: tl.tensor, most: tl.tensor) -> tl.tensor:
    """`measure` of the bins up to and including that one, or `most`."""
    return tl.min(tl.where(cumulative <= goal, most, tl.minimum(measure, most)), axis=0)


@triton.jit
def bin_at(table: tl.tensor, goal: tl.tensor, by_mass: tl.tensor, BINS: tl.constexpr) -> tl.tensor:
    """The bin that place `goal` is in, counted in mass or in tokens."""
    measure = table + tl.where(by_mass, 0, BINS) + tl.arange(0, BINS)
    return _bin_of_goal(tl.cumsum(tl.load(measure), axis=0), goal, BINS)


@triton.jit
def locate(
    table: tl.tensor,
    likely: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    drawn: tl.tensor,
    BINS: tl.constexpr,
) -> tuple[tl.tuple, tl.tuple, tl.tensor, tl.tensor]:
    """The bins that the questions of `kernels.sampler_search` have their answers in.

    → ((first and last bin of each question; the last before the first where it is not asked), (mass
    before each first bin), tokens before the first bin of question 0, mass of all bins).
    """
    place = tl.arange(0, BINS)
    mass = tl.cumsum(tl.load(table + place), axis=0)
    total = tl.max(mass, axis=0)
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
        size = tl.cumsum(tl.load(table + BINS + place), axis=0)
        if top_k < tl.max(size, axis=0):
            goal = top_k - 1
            first_k = _bin_of_goal(size, goal, BINS)
            last_k = first_k
            size_before = _before(size, goal, size)
            mass_k = _before(size, goal, mass)
            least = tl.maximum(mass_k, 1)
            most = _through(size, goal, mass, total)
    if top_p < 1:
        low = top_p_goal(top_p, least)
        high = top_p_goal(top_p, most)
        first_p = _bin_of_goal(mass, low, BINS)
        last_p = _bin_of_goal(mass, high, BINS)
        mass_p = _before(mass, low, mass)
        least = tl.maximum(mass_p, 1)
        most = _through(mass, high, mass, most)
    low = drawn_goal(drawn, tl.minimum(least, likely))
    high = drawn_goal(drawn, tl.minimum(most, likely))
    first = _bin_of_goal(mass, low, BINS)
    last = _bin_of_goal(mass, high, BINS)
    mass_before = _before(mass, low, mass)
    ranges = (first_k, last_k, first_p, last_p, first, last)
    return ranges, (mass_k, mass_p, mass_before), size_before, total
