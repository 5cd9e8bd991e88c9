"""The Triton kernels behind `linear_rows`: planes times a few rows of activations.

Weights are the rows of the matrix instruction and activations its columns, so a few of them cost no
more than one. Scales multiply the products in float32; minima are one more small product, with the sums
of 16 activations as a pair of float16 (the second holds what rounding the first lost).
"""

import triton
import triton.language as tl

from kernels.cuda.early import let_next_start, wait_for_inputs
from kernels.linear.gate import store_gated
from kernels.linear.rows_fields import at_once, factor, last_word, meta_word, minima_by_lane
from kernels.linear.rows_operands import four_planes, fragment, scale, scaled_plane, sides, small
from kernels.planes.fields import word_count
from kernels.planes.layout import ROWS, WIDTH
from kernels.planes.unpack import float16_in

_ROWS = tl.constexpr(ROWS)
_WIDTH = tl.constexpr(WIDTH)
_WORD = tl.constexpr(ROWS * WIDTH)
_LOW = tl.constexpr(2048.0)


@triton.jit
def _columns(px: tl.tensor, at: tl.tensor, K: tl.tensor, RAGGED: tl.constexpr) -> tl.tensor:
    """Activations [BM, 32], zero behind the last column."""
    if RAGGED:
        return tl.load(px + at, mask=(at + tl.arange(0, _WIDTH))[None, :] < K, other=0)
    return tl.load(px + at)


@triton.jit
def _planes_of(x: tl.tensor, BM: tl.constexpr) -> tl.tuple:
    """The columns [BM, 32] of each plane of a super-block [BM, 256], in the registers that have them."""
    parts = tl.permute(tl.reshape(x, (BM, 2, 2, 2, _WIDTH)), (0, 4, 3, 2, 1))
    lower, upper = tl.split(parts)
    first, second = tl.split(lower)
    third, fourth = tl.split(upper)
    p0, p1 = tl.split(first)
    p2, p3 = tl.split(second)
    p4, p5 = tl.split(third)
    p6, p7 = tl.split(fourth)
    return p0, p1, p2, p3, p4, p5, p6, p7


@triton.jit
def _word(pm: tl.tensor, at: tl.tensor, WARPS: tl.constexpr, BN: tl.constexpr) -> tl.tensor:
    """One word of each row, in the order in which a warp's lanes own the rows of a product."""
    parts = tl.reshape(tl.load(pm + at), (WARPS, 8, BN // (16 * WARPS), 2))
    return tl.reshape(tl.permute(parts, (2, 0, 3, 1)), (BN,))


@triton.jit
def _minimum_operand(
    pm: tl.tensor,
    pn: tl.tensor,
    FORM: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    WARPS: tl.constexpr,
    FAST: tl.constexpr,
) -> tl.tensor:
    """Minima as exact float16 [BN, 16], for the 16 sums of a super-block in the order of `_means`."""
    if minima_by_lane(FORM, BM):
        # Two bytes a lane and row, which lie where the matrix instruction wants them.
        pair = tl.arange(0, 4)
        halves = pn.to(tl.pointer_type(tl.int16), bitcast=True)
        word = tl.load(halves[:, None] + ((2 + pair // 2) * (2 * _ROWS) + pair % 2)[None, :])
        both = tl.join(small(word & 0xFF, FAST), small((word >> 8) & 0xFF, FAST))
        return tl.reshape(tl.broadcast_to(both[:, None], (BN, 2, 4, 2)), (BN, 16))
    place = tl.arange(0, 16)
    group = 4 * (place % 8 // 2) + place // 8 * 2 + place % 2
    if FORM.scales == "pair":
        word = tl.load(pn[:, None] + (group // 2 * _ROWS)[None, :])
        return (word >> 16).to(tl.int16).to(tl.float16, bitcast=True)
    if FORM.scale_width == _WIDTH:
        low, high = _word(pm, 2 * _ROWS, WARPS, BN), _word(pm, 3 * _ROWS, WARPS, BN)
        word = tl.where((group < 8)[None, :], low[:, None], high[:, None])
        return small((word >> (group // 2 % 4 * 8)[None, :]) & 0xFF, FAST)
    low = tl.where(
        (group < 4)[None, :], _word(pm, 0, WARPS, BN)[:, None], _word(pm, _ROWS, WARPS, BN)[:, None]
    )
    high = tl.where(
        (group < 12)[None, :],
        _word(pm, 2 * _ROWS, WARPS, BN)[:, None],
        _word(pm, 3 * _ROWS, WARPS, BN)[:, None],
    )
    word = tl.where((group < 8)[None, :], low, high)
    return small((word >> (group % 4 * 8 + 4)[None, :]) & 0xF, FAST)


@triton.jit
def _means(sums: tl.tensor, FORM: tl.constexpr, BM: tl.constexpr) -> tl.tensor:
    """[16, BM] in an order for which each lane has the minima: both sums of a plane share theirs."""
    if minima_by_lane(FORM, BM):
        parts = tl.permute(tl.reshape(sums, (BM, 4, 2, 2)), (0, 3, 1, 2))
        return tl.trans(tl.reshape(parts, (BM, 16)))
    return tl.trans(fragment(sums, BM, 16))


@triton.jit
def _minima(
    acc: tl.tensor,
    pm: tl.tensor,
    pn: tl.tensor,
    sums: tl.tensor,
    d: tl.tensor,
    FORM: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    WARPS: tl.constexpr,
    FAST: tl.constexpr,
) -> tl.tensor:
    """acc less the minima's part; `sums` are the means [BM, 16], which float16 cannot overflow."""
    operand = _minimum_operand(pm, pn, FORM, BN, BM, WARPS, FAST)
    means = _means(sums, FORM, BM)
    upper = means.to(tl.float16)
    lower = ((means - upper.to(tl.float32)) * _LOW).to(tl.float16)
    part = tl.dot(operand, upper) + tl.dot(operand, lower) * (1 / _LOW)
    if FORM.scales == "pair":
        acc += part * 16.0
    else:
        whole: tl.constexpr = 16.0 * (16777216.0 if FAST else 1.0)
        acc -= part * (float16_in(d, True) * whole)[:, None]
    return acc


@triton.jit
def _group(
    acc: tl.tensor,
    odd: tl.tensor,
    pq: tl.tensor,
    high: tl.tensor,
    pm: tl.tensor,
    d: tl.tensor,
    xs: tl.tuple,
    px: tl.tensor,
    column: tl.tensor,
    K: tl.tensor,
    FORM: tl.constexpr,
    GROUP: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    RAGGED: tl.constexpr,
    BEFORE: tl.constexpr,
    FAST: tl.constexpr,
    WARPS: tl.constexpr,
) -> tl.tuple:
    """Adds the products with four planes; with BEFORE planes 1 and 3 go to `odd`, and d waits."""
    words: tl.constexpr = word_count(FORM) // 2
    first = tl.load(pq + (GROUP * words) * _WORD)
    second = first
    if FORM.bits == 8:
        second = tl.load(pq + (GROUP * words + 1) * _WORD)
    if FORM.scale_width < _WIDTH:
        first_a, first_b = sides(first, BN)
        high_a, high_b = first_a, first_b
        if FORM.high_bits > 0:
            high_a, high_b = sides(high, BN)
        left = four_planes(first_a, first_a, high_a, FORM, GROUP, FAST)
        right = four_planes(first_b, first_b, high_b, FORM, GROUP, FAST)
        for index in tl.static_range(4):
            at = column + (4 * GROUP + index) * _WIDTH
            x = xs[4 * GROUP + index] if at_once(FORM, BM) else _columns(px, at, K, RAGGED)
            xa, xb = sides(x, BM)
            word = _word(pm, meta_word(FORM, GROUP, index) * _ROWS, WARPS, BN)
            acc += tl.dot(left[index], tl.trans(xa)) * scale(word, d, FORM, index, 0, FAST)[:, None]
            acc += tl.dot(right[index], tl.trans(xb)) * scale(word, d, FORM, index, 1, FAST)[:, None]
    else:
        first, second = fragment(first, BN, _WIDTH), fragment(second, BN, _WIDTH)
        upper = fragment(high, BN, _WIDTH) if FORM.high_bits > 0 else first
        planes = four_planes(first, second, upper, FORM, GROUP, FAST)
        for index in tl.static_range(4):
            at = column + (4 * GROUP + index) * _WIDTH
            x = xs[4 * GROUP + index] if at_once(FORM, BM) else _columns(px, at, K, RAGGED)
            x = tl.trans(fragment(x, BM, _WIDTH))
            word = _word(pm, meta_word(FORM, GROUP, index) * _ROWS, WARPS, BN)
            if BEFORE:
                plane = scaled_plane(planes[index], word, FORM, index, FAST)
                if index % 2 == 0:
                    acc = tl.dot(plane, x, acc)
                else:
                    odd = tl.dot(plane, x, odd)
            else:
                acc += tl.dot(planes[index], x) * scale(word, d, FORM, index, 0, FAST)[:, None]
    return acc, odd


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
) -> tl.tensor:
    """float32 [BN, BM]: rows of weights times rows of activations, over a share of the super-blocks.

    token [BM]: the rows of x and sums, of which those that are not `live` may be left unread; block: which
    BN rows of the weights, counted from tile `base_tile`.
    """
    # What the compiler then knows decides how wide it loads.
    K = K // _WIDTH * _WIDTH
    first = tl.minimum(base_tile + block * BN // _ROWS, TILES - 1)
    column = tl.arange(0, _WIDTH)
    base = (first * S).to(tl.int64)
    natural = block * BN % _ROWS + tl.arange(0, BN)
    place = tl.arange(0, BN)
    OWN: tl.constexpr = BN // (
        8 * WARPS
    )  # rows of one lane; neighbours, so that it reads their scales at once
    owned = (place // 16 % WARPS * 8 + place % 8) * OWN + place // (16 * WARPS) * 2 + place // 8 % 2
    owned += block * BN % _ROWS
    ahead = tl.minimum(first + owned // _ROWS, TILES - 1) - first
    ahead *= S
    within = owned % _ROWS
    words: tl.constexpr = word_count(FORM)
    pq = (
        quants
        + base * (words * _WORD)
        + ((ahead * (words * _WORD) + within * _WIDTH)[:, None] + column[None, :])
    )
    ph = high + base * _WORD + ((ahead * _WORD + within * _WIDTH)[:, None] + column[None, :])
    pn = meta + base * (FORM.words * _ROWS) + (ahead * (FORM.words * _ROWS) + within)
    ahead_n = (tl.minimum(first + natural // _ROWS, TILES - 1) - first) * S
    pm = meta + base * (FORM.words * _ROWS) + (ahead_n * (FORM.words * _ROWS) + natural % _ROWS)
    stride = K if RAGGED else S * (8 * _WIDTH)
    counts = K // _WIDTH * 2 if RAGGED else S * 16
    px = x + (token * stride)[:, None] + column[None, :]
    columns = tl.arange(0, 8 * _WIDTH)[None, :]
    pxs = x + (token * stride)[:, None] + columns
    ps = sums + (token * counts)[:, None] + tl.arange(0, 16)[None, :]
    acc = tl.zeros((BN, BM), tl.float32)
    for s in tl.range(S * share // SPLITS, S * (share + 1) // SPLITS, num_stages=STAGES):
        here = s * (words * _WORD)
        upper = tl.load(ph + s * _WORD).to(tl.int16) if FORM.high_bits > 0 else 0
        scales = pm + s * (FORM.words * _ROWS)
        d, factor_d = 0, 0.0
        if FORM.scales == "k":
            d = _word(scales, last_word(FORM) * _ROWS, WARPS, BN)
            factor_d = float16_in(d, False)
        part, odd = acc, acc
        if BEFORE:
            part = tl.zeros((BN, BM), tl.float32)
            odd = tl.zeros((BN, BM), tl.float32)
        at = s * (8 * _WIDTH)
        xs = ()
        if at_once(FORM, BM):
            there = live[:, None] & (at + columns < K) if RAGGED else live[:, None]
            xs = _planes_of(tl.load(pxs + at, mask=there, other=0), BM)
        for group in tl.static_range(2):
            part, odd = _group(
                part, odd, pq + here, upper, scales, factor_d, xs, px, at, K,
                FORM, group, BN, BM, RAGGED, BEFORE, FAST, WARPS,
            )  # fmt: skip
        if BEFORE:
            even_factor: tl.constexpr = factor(FORM, 0, FAST)
            odd_factor: tl.constexpr = factor(FORM, 1, FAST)
            acc += part * (factor_d * even_factor)[:, None] + odd * (factor_d * odd_factor)[:, None]
        else:
            acc = part
        if FORM.minima:
            if RAGGED:
                there = (s * 16 + tl.arange(0, 16))[None, :] < counts
                means = tl.load(ps + s * 16, mask=there, other=0) * 0.0625
            else:
                means = tl.load(ps + s * 16) * 0.0625
            acc = _minima(acc, scales, pn + s * (FORM.words * _ROWS), means, d, FORM, BN, BM, WARPS, FAST)
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
    EARLY: tl.constexpr,
) -> None:
    """out float32 [SPLITS, M, N] = the products of each share, the bias in the first.

    STRIDE: from one row of out to the next, N or more. grid: (⌈N / BN⌉, SPLITS). A program streams
    BN rows of its share of the weights once, and the
    activations of the same columns: bytes = weights + ⌈N / BN⌉ · M · K · 2 (from L2) + SPLITS · M · N · 4.
    """
    wait_for_inputs(EARLY)
    acc = products(
        quants, high, meta, x, sums, S, K, tl.minimum(tl.arange(0, BM), M - 1), tl.arange(0, BM) < M,
        tl.program_id(0), 0, tl.program_id(1), SPLITS,
        FORM, BN, BM, STAGES, RAGGED, BEFORE, FAST, TILES, WARPS,
    )  # fmt: skip
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
