"""What every sampling kernel does with a row of logits: add up the partial sums, edit, order and weigh them.

Edited logits are computed again by each kernel from the same partial sums: few tokens of a row are ever
looked at twice, so no kernel writes them.

`source` is (logits, stride of a split, row of the logits, row of the state, `SamplerState.rows`,
`.counts`, `.bias`); SHAPE is (vocab, stride of a row, splits).
"""

import triton
import triton.language as tl

from kernels.cuda.early import let_next_start, wait_for_inputs
from kernels.state.sampler_state import (
    EDITED,
    FIELDS,
    FREQUENCY,
    PRESENCE,
    REPETITION,
    TEMPERATURE,
    TOP_K,
    float_field,
)

LOWEST = tl.constexpr(-3.4028234663852886e38)
UNIT = tl.constexpr(float(1 << 42))
"""Weight of the best token. Sums of integers depend on no order, and 2^42 times 2^20 tokens fit."""


@triton.jit
def raw_logits(source: tl.tuple, column: tl.tensor, inside: tl.tensor, SHAPE: tl.constexpr) -> tl.tensor:
    """Sum over the splits of the head's linear, in index order; 0 outside."""
    place = source[0] + source[2].to(tl.int64) * SHAPE[1] + column
    x = tl.load(place, mask=inside, other=0.0)
    SPLITS: tl.constexpr = SHAPE[2]
    for split in tl.static_range(1, SPLITS):
        x += tl.load(place + split * source[1].to(tl.int64), mask=inside, other=0.0)
    return x


@triton.jit
def edit_logits(
    x: tl.tensor, source: tl.tuple, column: tl.tensor, inside: tl.tensor, SHAPE: tl.constexpr
) -> tl.tensor:
    """Penalties and bias of an edited row; -inf outside the vocabulary."""
    slot = source[3]
    rows = source[4]
    if tl.load(rows + slot * FIELDS + EDITED) != 0:
        seen = tl.load(source[5] + slot * SHAPE[0] + column, mask=inside, other=0).to(tl.int32)
        answered = seen & 0x7FFF
        factor = float_field(rows, slot, REPETITION)
        x = tl.where(seen != 0, tl.where(x > 0, tl.div_rn(x, factor + 0.0 * x), x * factor), x)
        offset = tl.load(source[6] + slot * SHAPE[0] + column, mask=inside, other=0.0)
        offset -= tl.where(answered > 0, float_field(rows, slot, PRESENCE), 0.0)
        offset -= float_field(rows, slot, FREQUENCY) * answered.to(tl.float32)
        x += offset
    return tl.where(inside, x, float("-inf"))


@triton.jit
def edited_logits(source: tl.tuple, column: tl.tensor, inside: tl.tensor, SHAPE: tl.constexpr) -> tl.tensor:
    """The logits that are sampled; -inf outside the vocabulary."""
    return edit_logits(raw_logits(source, column, inside, SHAPE), source, column, inside, SHAPE)


@triton.jit
def inverse_temperature(temperature: tl.tensor) -> tl.tensor:
    """log2(e) / temperature, finite for every positive temperature."""
    return tl.minimum(1.4426950408889634 / temperature, 1e38)


@triton.jit
def weigh(x: tl.tensor, best: tl.tensor, inv_temp: tl.tensor) -> tl.tensor:
    """exp((x - best) / temperature) in (0, 1] as float32; 0 for -inf."""
    return tl.exp2((x - best) * inv_temp)


@triton.jit
def units(weight: tl.tensor) -> tl.tensor:
    """A weight as int64 in fractions of the best token's."""
    return (weight * UNIT).to(tl.int64)


@triton.jit
def ordered(x: tl.tensor, token: tl.tensor) -> tl.tensor:
    """int64 that orders by logit, then by lower id; 0.0 and -0.0 are equal."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (key.to(tl.int64) << 32) | (0x7FFFFFFF - token).to(tl.int64)


@triton.jit
def logit_of(packed: tl.tensor) -> tl.tensor:
    """The logit inside `ordered`."""
    key = (packed >> 32).to(tl.int32)
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def token_of(packed: tl.tensor) -> tl.tensor:
    """The id inside `ordered`."""
    return 0x7FFFFFFF - (packed & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def keeps_many(rows: tl.tensor, slot: tl.tensor, VOCAB: tl.constexpr, MOST: tl.constexpr) -> tl.tensor:
    """Whether a row is drawn, and its top-k keeps all tokens or more than MOST."""
    top_k = tl.load(rows + slot * FIELDS + TOP_K)
    return (float_field(rows, slot, TEMPERATURE) > 0) & ((top_k <= 0) | (top_k > MOST) | (top_k >= VOCAB))


@triton.jit(do_not_specialize=["plane"])
def group_statistics(
    logits: tl.tensor,
    split_stride: tl.tensor,
    slots: tl.tensor,
    rows: tl.tensor,
    counts: tl.tensor,
    bias: tl.tensor,
    statistics: tl.tensor,
    plane: tl.tensor,
    SHAPE: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    MOST: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """Grid (ceil(GROUPS / TILE), R): planes [R, GROUPS] about each GROUP of neighbouring tokens.

    Plane 0 is the maximum, NaN where an unedited logit is NaN or infinite. For rows that keep more
    than MOST tokens plane 1 is the sum of exp((x - maximum) / temperature) and plane 2 the least
    logit that is not forbidden.
    Reads 4 bytes per token and split, and 6 more in edited rows.
    """
    wait_for_inputs(EARLY)
    let_next_start(EARLY)
    row = tl.program_id(1)
    group = tl.program_id(0) * TILE + tl.arange(0, TILE)
    slot = tl.load(slots + row).to(tl.int64)
    temperature = float_field(rows, tl.maximum(slot, 0), TEMPERATURE)
    wide = keeps_many(rows, tl.maximum(slot, 0), SHAPE[0], MOST)
    if slot >= 0:
        source = (logits, split_stride, row, slot, rows, counts, bias)
        column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        inside = column < SHAPE[0]
        x = raw_logits(source, column, inside, SHAPE)
        bad = tl.sum((tl.abs(x) <= -LOWEST).to(tl.int32), axis=1) < GROUP
        x = edit_logits(x, source, column, inside, SHAPE)
        best = tl.max(x, axis=1)
        place = statistics + row * GROUPS + group
        written = group < GROUPS
        tl.store(place, tl.where(bad, float("nan"), best), mask=written)
        if wide:
            weight = weigh(x, tl.maximum(best, LOWEST)[:, None], inverse_temperature(temperature))
            tl.store(place + plane, tl.sum(weight, axis=1), mask=written)
            least = tl.min(tl.where(x >= LOWEST, x, -LOWEST), axis=1)
            tl.store(place + 2 * plane, least, mask=written)
