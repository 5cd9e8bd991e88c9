"""Where in a row's order of logits the answers of a search lie, guessed from a sample of its tokens.

Sorting a row into bins costs an atomic addition for each token. So a row that keeps nearly all of its
tokens is looked at through one or two windows around the guessed answers: only tokens inside are sorted,
into bins that are much narrower for it, and what lies above, between and below is added up. A guess that
misses costs time alone: its answer then lies in one of these three, which are bins like others.

A spread says which bin a logit is in: (upper end of the first window, bins per logit in it, bins of it,
upper end of the second, bins per logit in it). Bin 0 has what lies above, the first window's last what
lies between, the last bin what lies below.
"""

import triton
import triton.language as tl

from kernels.sampler_logits import LOWEST, edited_logits, logit_of, sharpness, units, weigh
from kernels.sampler_state import TEMPERATURE, TOP_P, float_field

_DEVIATIONS = tl.constexpr(5.0)
"""Half the width of a window, in standard errors of a share of one half: there the error is largest."""
_ROUNDING = tl.constexpr(1e-5)
"""Part of a row's mass by which sums in float32 may be off."""


@triton.jit
def whole_spread(best: tl.tensor, bins_per_logit: tl.tensor, BINS: tl.constexpr) -> tl.tuple:
    """Bins of equal width from the best logit on; the last has the rest."""
    zero = best * 0.0
    return best, bins_per_logit, zero + (BINS - 1), zero, zero


@triton.jit
def bin_of(x: tl.tensor, spread: tl.tuple, BINS: tl.constexpr) -> tl.tensor:
    """The bin of a finite logit, never falling as logits fall: bin 0 holds the best."""
    first = tl.minimum(tl.maximum((spread[0] - x) * spread[1], 0.0), spread[2])
    second = tl.minimum(tl.maximum((spread[3] - x) * spread[4], 0.0), BINS - 1 - spread[2])
    return (first + second).to(tl.int32)


@triton.jit
def _sample(
    source: tl.tuple,
    best: tl.tensor,
    spread: tl.tuple,
    least: tl.tensor,
    found: tl.tensor,
    count: tl.tensor,
    table: tl.tensor,
    SHAPE: tl.constexpr,
    SIZES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Put the `count` best tokens, and of those below `least` one of each STRIDE, into coarse bins.

    → (sum of the sampled weights, sum of their squares).
    """
    COARSE: tl.constexpr = SIZES[7]
    STRIDE: tl.constexpr = SIZES[8]
    TILE: tl.constexpr = min(4096, 2 * SIZES[2])
    sharp = sharpness(float_field(source[4], source[3], TEMPERATURE))
    tl.store(table + tl.arange(0, 2 * COARSE), tl.zeros((2 * COARSE,), tl.int64))
    tl.debug_barrier()
    rank = tl.arange(0, SIZES[4])
    head = tl.maximum(logit_of(tl.load(found + rank, mask=rank < count, other=0)), LOWEST)
    place_of_head = table + bin_of(head, spread, COARSE)
    tl.atomic_add(place_of_head, units(weigh(head, best, sharp)), mask=rank < count, sem="relaxed")
    total = tl.zeros((TILE,), tl.float32)
    squares = tl.zeros((TILE,), tl.float32)
    for first in range(0, tl.cdiv(SHAPE[0], STRIDE), TILE):
        index = first + tl.arange(0, TILE)
        # Any pattern in the order of the vocabulary would be missed or met always by equal steps.
        column = index * STRIDE + ((index.to(tl.uint32) * 0x9E3779B1) >> 16).to(tl.int32) % STRIDE
        x = edited_logits(source, column, column < SHAPE[0], SHAPE)
        weight = tl.where(x < least, weigh(x, best, sharp), 0.0)
        mass = units(weight)
        place = table + COARSE + bin_of(tl.maximum(x, LOWEST), spread, COARSE)
        tl.atomic_add(place, mass, mask=mass > 0, sem="relaxed")
        total += weight
        squares += weight * weight
    return tl.sum(total, axis=0), tl.sum(squares, axis=0)


@triton.jit
def _window(
    reached: tl.tensor,
    goal: tl.tensor,
    slack: tl.tensor,
    best: tl.tensor,
    scale: tl.tensor,
    BINS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Upper and lower end of the coarse bins that hold the places from goal - slack to goal + slack."""
    first = tl.sum((reached <= goal - slack).to(tl.int32), axis=0)
    last = tl.minimum(tl.sum((reached <= goal + slack).to(tl.int32), axis=0), BINS - 1)
    return best - tl.minimum(first, last) / scale, best - (last + 1) / scale


@triton.jit
def windowed_spread(
    source: tl.tuple,
    best: tl.tensor,
    bins_per_logit: tl.tensor,
    head_tokens: tl.tuple,
    drawn: tl.tensor,
    table: tl.tensor,
    SHAPE: tl.constexpr,
    SIZES: tl.constexpr,
) -> tuple[tl.tuple, tl.tensor]:
    """The spread of a row without a top-k and min-p.

    `head_tokens` is (least, the row's mass, tokens, their number), which are all tokens with logits >=
    `least`; `drawn` is the row's uniform number; SIZES is that of `kernels.sampler_candidates`. What is
    in `table` is lost. → (spread, whether it has windows).
    """
    COARSE: tl.constexpr = SIZES[7]
    BINS: tl.constexpr = SIZES[6]
    least, full, found, count = head_tokens
    scale = bins_per_logit * (COARSE / BINS)
    weights, squares = _sample(
        source, best, whole_spread(best, scale, COARSE), least, found, count, table, SHAPE, SIZES
    )
    # The release publishes all threads' additions, the acquire lets all see them.
    tl.debug_barrier()
    tl.atomic_add(table + 2 * BINS + 7, tl.zeros_like(full), sem="acq_rel")
    place = table + tl.arange(0, COARSE)
    head = tl.cumsum(tl.load(place, volatile=True), axis=0).to(tl.float32)
    tail = tl.cumsum(tl.load(place + COARSE, volatile=True), axis=0).to(tl.float32)
    tl.debug_barrier()
    sampled = tl.max(tail, axis=0)
    rest = full.to(tl.float32) - tl.max(head, axis=0)
    known = (weights > 0) & (sampled > 0) & (rest > 0)
    spread = whole_spread(best, bins_per_logit, BINS)
    if known:
        reached = head + tail * (rest / sampled)
        # Of weights that differ, as many count as equal ones with this error.
        error = 0.5 * tl.sqrt(squares) / weights
        slack = _DEVIATIONS * error * rest + _ROUNDING * full.to(tl.float32)
        top_p = float_field(source[4], source[3], TOP_P)
        kept = full.to(tl.float32) * tl.minimum(top_p, 1.0)
        ours = tl.where(top_p < 1, BINS // 2, BINS - 1).to(tl.float32)
        high = best * 0.0
        per_logit = high
        if top_p < 1:
            high, low = _window(reached, kept, slack, best, scale, COARSE)
            per_logit = (BINS - 1 - BINS // 2) / (high - low)
        first, last = _window(reached, drawn.to(tl.float32) * kept, slack, best, scale, COARSE)
        spread = first, ours / (first - last), ours, high, per_logit
    return spread, known
