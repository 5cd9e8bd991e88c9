"""The Triton kernels behind `linear_rows`: planes times a few rows of activations.

Weights are the rows of the matrix instruction and activations its columns, so a few of them cost no
more than one. What is added for each super-block is in `rows_blocks`.
"""

import triton
import triton.language as tl

from kernels.cuda.early import let_next_start, wait_for_inputs
from kernels.linear.gate import store_gated
from kernels.linear.rows_blocks import add_block, from_here, load_activations, load_block
from kernels.linear.rows_fields import planes_at_once
from kernels.planes.fields import word_count
from kernels.planes.layout import ROWS, WIDTH

_ROWS = tl.constexpr(ROWS)
_WIDTH = tl.constexpr(WIDTH)
_WORD = tl.constexpr(ROWS * WIDTH)


@triton.jit
def products(
    quants: tl.tensor,
    high: tl.tensor,
    meta: tl.tensor,
    x: tl.tensor,
    sums: tl.tensor,
    S: tl.tensor,
    K: tl.tensor,
    token: tl.tensor,
    live: tl.tensor,
    block: tl.tensor,
    base_tile: tl.tensor,
    share: tl.tensor,
    SPLITS: tl.tensor,
    FORM: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    STAGES: tl.constexpr,
    RAGGED: tl.constexpr,
    BEFORE: tl.constexpr,
    FAST: tl.constexpr,
    TILES: tl.tensor,
    WARPS: tl.constexpr,
    AHEAD: tl.constexpr = 0,
    EARLY: tl.constexpr = False,
    CAPPED: tl.constexpr = False,
) -> tl.tensor:
    """float32 [BN, BM]: rows of weights times rows of activations, over a share of the super-blocks.

    token [BM]: the rows of x and sums, of which those that are not `live` may be left unread; block: which
    BN rows of the weights, counted from tile `base_tile`.
    AHEAD: 0 where this program has waited for its inputs. Else how many super-blocks each share has: their
    weights are loaded into one warp's registers, and then it waits and lets the next kernel start.
    CAPPED: see `planes_at_once`.
    """
    # What the compiler then knows decides how wide it loads.
    K = K // _WIDTH * _WIDTH
    first = tl.minimum(base_tile + block * BN // _ROWS, TILES - 1)
    column = tl.arange(0, _WIDTH)
    base = (first * S).to(tl.int64)
    natural = block * BN % _ROWS + tl.arange(0, BN)
    place = tl.arange(0, BN)
    # Rows of one lane: neighbours, so that it reads their scales at once.
    OWN: tl.constexpr = BN // (8 * WARPS)
    owned = (place // 16 % WARPS * 8 + place % 8) * OWN + place // (16 * WARPS) * 2 + place // 8 % 2
    owned += block * BN % _ROWS
    ahead = tl.minimum(first + owned // _ROWS, TILES - 1) - first
    ahead *= S
    within = owned % _ROWS
    QUANTS: tl.constexpr = word_count(FORM) * _WORD
    pq = quants + base * QUANTS + ((ahead * QUANTS + within * _WIDTH)[:, None] + column[None, :])
    ph = high + base * _WORD + ((ahead * _WORD + within * _WIDTH)[:, None] + column[None, :])
    pn = meta + base * (FORM.words * _ROWS) + (ahead * (FORM.words * _ROWS) + within)
    ahead_n = (tl.minimum(first + natural // _ROWS, TILES - 1) - first) * S
    pm = meta + base * (FORM.words * _ROWS) + (ahead_n * (FORM.words * _ROWS) + natural % _ROWS)
    stride = K if RAGGED else S * (8 * _WIDTH)
    counts = K // _WIDTH * 2 if RAGGED else S * 16
    APART: tl.constexpr = AHEAD > 0
    LOADED: tl.constexpr = planes_at_once(FORM, BM, CAPPED, APART)
    WIDE: tl.constexpr = _WIDTH if APART else _WIDTH * LOADED
    px = x + (token * stride)[:, None] + tl.arange(0, WIDE)[None, :]
    ps = sums + (token * counts)[:, None] + tl.arange(0, 16)[None, :]
    acc = tl.zeros((BN, BM), tl.float32)
    start = S * share // SPLITS
    if AHEAD > 0:
        tl.static_assert(WARPS == 1)
        held: tl.tuple = ()
        for number in tl.static_range(AHEAD):
            s = start + number
            loaded = load_block(
                pq + s * QUANTS, ph + s * _WORD, pm + s * (FORM.words * _ROWS),
                pn + s * (FORM.words * _ROWS), FORM, BM,
            )  # fmt: skip
            held = held + (loaded,)
        wait_for_inputs(EARLY)
        let_next_start(EARLY)
        inputs: tl.tuple = ()
        for number in tl.static_range(AHEAD):
            own = load_activations(
                px, ps, start + number, live, K, counts, FORM, BM, RAGGED, LOADED, APART
            )  # fmt: skip
            inputs = inputs + (own,)
        for number in tl.static_range(AHEAD):
            acc = add_block(
                acc, from_here(held[number], FORM, FAST), inputs[number], start + number, px, live, K,
                FORM, BN, BM, RAGGED, BEFORE, FAST, WARPS, LOADED,
            )  # fmt: skip
    else:
        for s in tl.range(start, S * (share + 1) // SPLITS, num_stages=STAGES):
            loaded = load_block(
                pq + s * QUANTS, ph + s * _WORD, pm + s * (FORM.words * _ROWS),
                pn + s * (FORM.words * _ROWS), FORM, BM,
            )  # fmt: skip
            inputs = load_activations(px, ps, s, live, K, counts, FORM, BM, RAGGED, LOADED, APART)
            acc = add_block(
                acc, loaded, inputs, s, px, live, K,
                FORM, BN, BM, RAGGED, BEFORE, FAST, WARPS, LOADED,
            )  # fmt: skip
    acc = tl.reshape(acc, (OWN // 2, WARPS, 2, 8, BM))
    return tl.reshape(tl.permute(acc, (1, 3, 0, 2, 4)), (BN, BM))


@triton.jit(do_not_specialize=["S", "K", "M", "SPLITS", "TILES"])
def planes_kernel(
    quants: tl.tensor,
    high: tl.tensor,
    meta: tl.tensor,
    x: tl.tensor,
    sums: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    STRIDE: int,
    N: int,
    S: int,
    K: int,
    M: int,
    SPLITS: int,
    TILES: int,
    FORM: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    STAGES: tl.constexpr,
    RAGGED: tl.constexpr,
    BEFORE: tl.constexpr,
    BIAS: tl.constexpr,
    FAST: tl.constexpr,
    WARPS: tl.constexpr,
    AHEAD: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """out float32 [SPLITS, M, N] = the products of each share, the bias in the first.

    STRIDE: from one row of out to the next, N or more. grid: (⌈N / BN⌉, SPLITS). A program streams
    BN rows of its share of the weights once, and the
    activations of the same columns: bytes = weights + ⌈N / BN⌉ · M · K · 2 (from L2) + SPLITS · M · N · 4.
    """
    if AHEAD == 0:
        wait_for_inputs(EARLY)
    acc = products(
        quants, high, meta, x, sums, S, K, tl.minimum(tl.arange(0, BM), M - 1), tl.arange(0, BM) < M,
        tl.program_id(0), 0, tl.program_id(1), SPLITS,
        FORM, BN, BM, STAGES, RAGGED, BEFORE, FAST, TILES, WARPS, AHEAD, EARLY,
    )  # fmt: skip
    if AHEAD == 0:
        let_next_start(EARLY)
    store_share(acc, bias, out, STRIDE, N, M, tl.program_id(0), tl.program_id(1), BN, BM, BIAS)


@triton.jit
def store_share(
    acc: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    STRIDE: tl.tensor,
    N: tl.tensor,
    M: tl.tensor,
    block: tl.tensor,
    share: tl.tensor,
    BN: tl.constexpr,
    BM: tl.constexpr,
    BIAS: tl.constexpr,
) -> None:
    """The products [BN, BM] of one share go to its part of out [SPLITS, M, N], the bias to the first."""
    row = block * BN + tl.arange(0, BN)
    token = tl.arange(0, BM)
    if BIAS:
        added = tl.load(bias + row, mask=row < N, other=0.0)
        acc += tl.where(share == 0, added, 0.0)[:, None]
    at = out + share.to(tl.int64) * M * STRIDE + token[None, :] * STRIDE + row[:, None]
    tl.store(at, acc, mask=(token[None, :] < M) & (row[:, None] < N))


@triton.jit(do_not_specialize=["S", "K", "M", "SPLITS", "TILES"])
def gated_kernel(
    quants: tl.tensor,
    high: tl.tensor,
    meta: tl.tensor,
    x: tl.tensor,
    sums: tl.tensor,
    values: tl.tensor,
    value_sums: tl.tensor,
    N: int,
    S: int,
    K: int,
    M: int,
    SPLITS: int,
    TILES: int,
    FORM: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    STAGES: tl.constexpr,
    RAGGED: tl.constexpr,
    BEFORE: tl.constexpr,
    ACTIVATION: tl.constexpr,
    SCALE: tl.constexpr,
    FAST: tl.constexpr,
    WARPS: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """values float16 [M, N / 2] = activation(gate) * up * SCALE and their sums of 16; rows gate, up in pairs.

    grid: (⌈N / BN⌉, 1), BN a multiple of 32; bytes as `planes_kernel`, with M · N for the result.
    """
    wait_for_inputs(EARLY)
    acc = products(
        quants, high, meta, x, sums, S, K, tl.minimum(tl.arange(0, BM), M - 1), tl.arange(0, BM) < M,
        tl.program_id(0), 0, tl.program_id(1), SPLITS,
        FORM, BN, BM, STAGES, RAGGED, BEFORE, FAST, TILES, WARPS,
    )  # fmt: skip
    let_next_start(EARLY)
    token = tl.arange(0, BM)
    width = N // 2
    store_gated(
        acc, values, value_sums, tl.program_id(0), token, token < M, width, width, BN, BM, ACTIVATION, SCALE
    )
