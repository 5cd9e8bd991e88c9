"""A super-block of planes times a few rows of activations: what is loaded of both, and what is added.

Scales multiply the products in float32; minima are one more small product, with the sums of 16 activations
as a pair of float16 (the second holds what rounding the first lost).
"""

import triton
import triton.language as tl

from kernels.linear.rows_fields import factor, last_word, meta_word, minima_by_lane
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
def _eight_columns(
    px: tl.tensor, at: tl.tensor, live: tl.tensor, K: tl.tensor, BM: tl.constexpr, RAGGED: tl.constexpr
) -> tl.tuple:
    """Activations [BM, 32] of all planes, as `_four_columns` gives them."""
    there = live[:, None]
    if RAGGED:
        there = there & ((at + tl.arange(0, 8 * _WIDTH))[None, :] < K)
    x = tl.load(px + at, mask=there, other=0)
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
def _four_columns(
    px: tl.tensor, at: tl.tensor, live: tl.tensor, K: tl.tensor, BM: tl.constexpr, RAGGED: tl.constexpr
) -> tl.tuple:
    """Activations [BM, 32] of four planes, zero for rows that are not live and behind the last column.

    Loaded at once: of a load for each plane the compiler moves the addresses from lane to lane, in every
    step of the loop, where they come from a sum over the program's threads.
    """
    there = live[:, None]
    if RAGGED:
        there = there & ((at + tl.arange(0, 4 * _WIDTH))[None, :] < K)
    x = tl.load(px + at, mask=there, other=0)
    lower, upper = tl.split(tl.permute(tl.reshape(x, (BM, 2, 2, _WIDTH)), (0, 3, 2, 1)))
    p0, p1 = tl.split(lower)
    p2, p3 = tl.split(upper)
    return p0, p1, p2, p3


@triton.jit
def _ordered(word: tl.tensor, WARPS: tl.constexpr, BN: tl.constexpr) -> tl.tensor:
    """One word of each row, in the order in which a warp's lanes own the rows of a product."""
    parts = tl.reshape(word, (WARPS, 8, BN // (16 * WARPS), 2))
    return tl.reshape(tl.permute(parts, (2, 0, 3, 1)), (BN,))


@triton.jit
def load_block(
    pq: tl.tensor, ph: tl.tensor, pm: tl.tensor, pn: tl.tensor, FORM: tl.constexpr, BM: tl.constexpr
) -> tl.tuple:
    """All that is held of a super-block of weights: words of quants, upper bits, words of scales, minima."""
    quants: tl.tuple = ()
    for number in tl.static_range(word_count(FORM)):
        quants = quants + (tl.load(pq + number * _WORD),)
    upper = tl.load(ph) if FORM.high_bits > 0 else 0
    words: tl.constexpr = FORM.words
    meta: tl.tuple = ()
    for number in tl.static_range(words):
        meta = meta + (tl.load(pm + number * _ROWS),)
    minima = 0
    if minima_by_lane(FORM, BM):
        # Two bytes a lane and row, which lie where the matrix instruction wants them.
        pair = tl.arange(0, 4)
        halves = pn.to(tl.pointer_type(tl.int16), bitcast=True)
        minima = tl.load(halves[:, None] + ((2 + pair // 2) * (2 * _ROWS) + pair % 2)[None, :])
    elif FORM.minima and FORM.scales == "pair":
        place = tl.arange(0, 16)
        group = 4 * (place % 8 // 2) + place // 8 * 2 + place % 2
        minima = tl.load(pn[:, None] + (group // 2 * _ROWS)[None, :])
    return quants, upper, meta, minima


@triton.jit
def from_here(held: tl.tuple, FORM: tl.constexpr, FAST: tl.constexpr) -> tl.tuple:
    """What `load_block` gave, unknown to the compiler before this place.

    Else it hands words from lane to lane as soon as they are there, and waits for each before it loads the
    next.
    """
    quants, upper, meta, minima = held
    if FAST:
        words: tl.constexpr = FORM.words
        late: tl.tuple = ()
        for number in tl.static_range(words):
            late = late + (_unknown(meta[number], 1),)
        meta = late
        if FORM.minima:
            minima = _unknown(minima, 2)
        if FORM.scale_width < _WIDTH:
            late = ()
            for number in tl.static_range(word_count(FORM)):
                late = late + (_unknown(quants[number], 2),)
            quants = late
            if FORM.high_bits > 1:
                upper = _unknown(upper, 2)
    return quants, upper, meta, minima


@triton.jit
def _unknown(value: tl.tensor, PACK: tl.constexpr) -> tl.tensor:
    """A value that nothing before this place may use."""
    return tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [value], dtype=value.dtype, is_pure=False, pack=PACK
    )


@triton.jit
def _minimum_operand(
    meta: tl.tuple,
    minima: tl.tensor,
    FORM: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    FAST: tl.constexpr,
) -> tl.tensor:
    """Minima as exact float16 [BN, 16], for the 16 sums of a super-block in the order of `_means`."""
    if minima_by_lane(FORM, BM):
        both = tl.join(small(minima & 0xFF, FAST), small((minima >> 8) & 0xFF, FAST))
        operand = tl.reshape(tl.broadcast_to(both[:, None], (BN, 2, 4, 2)), (BN, 16))
    elif FORM.scales == "pair":
        operand = (minima >> 16).to(tl.int16).to(tl.float16, bitcast=True)
    else:
        place = tl.arange(0, 16)
        group = 4 * (place % 8 // 2) + place // 8 * 2 + place % 2
        if FORM.scale_width == _WIDTH:
            word = tl.where((group < 8)[None, :], meta[2][:, None], meta[3][:, None])
            operand = small((word >> (group // 2 % 4 * 8)[None, :]) & 0xFF, FAST)
        else:
            low = tl.where((group < 4)[None, :], meta[0][:, None], meta[1][:, None])
            high = tl.where((group < 12)[None, :], meta[2][:, None], meta[3][:, None])
            word = tl.where((group < 8)[None, :], low, high)
            operand = small((word >> (group % 4 * 8 + 4)[None, :]) & 0xF, FAST)
    return operand


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
    meta: tl.tuple,
    minima: tl.tensor,
    sums: tl.tensor,
    d: tl.tensor,
    FORM: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    FAST: tl.constexpr,
) -> tl.tensor:
    """acc less the minima's part; `sums` are the means [BM, 16], which float16 cannot overflow."""
    operand = _minimum_operand(meta, minima, FORM, BN, BM, FAST)
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
def _plane_columns(
    xs: tl.tuple,
    four: tl.tuple,
    px: tl.tensor,
    column: tl.tensor,
    PLANE: tl.constexpr,
    K: tl.tensor,
    LOADED: tl.constexpr,
    RAGGED: tl.constexpr,
) -> tl.tensor:
    """Activations [BM, 32] of a plane: of all eight, of its group's four, or loaded now."""
    if LOADED == 8:
        x = xs[PLANE]
    elif LOADED == 4:
        x = four[PLANE % 4]
    else:
        x = _columns(px, column + PLANE * _WIDTH, K, RAGGED)
    return x


@triton.jit
def _group(
    acc: tl.tensor,
    odd: tl.tensor,
    quants: tl.tuple,
    high: tl.tensor,
    meta: tl.tuple,
    d: tl.tensor,
    xs: tl.tuple,
    px: tl.tensor,
    live: tl.tensor,
    column: tl.tensor,
    K: tl.tensor,
    FORM: tl.constexpr,
    GROUP: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    RAGGED: tl.constexpr,
    BEFORE: tl.constexpr,
    FAST: tl.constexpr,
    LOADED: tl.constexpr,
) -> tl.tuple:
    """Adds the products with four planes; with BEFORE planes 1 and 3 go to `odd`, and d waits."""
    four: tl.tuple = ()
    if LOADED == 4:
        four = _four_columns(px, column + GROUP * (4 * _WIDTH), live, K, BM, RAGGED)
    words: tl.constexpr = word_count(FORM) // 2
    first = quants[GROUP * words]
    second = first
    if FORM.bits == 8:
        second = quants[GROUP * words + 1]
    if FORM.scale_width < _WIDTH:
        first_a, first_b = sides(first, BN)
        high_a, high_b = first_a, first_b
        if FORM.high_bits > 0:
            high_a, high_b = sides(high, BN)
        left = four_planes(first_a, first_a, high_a, FORM, GROUP, FAST)
        right = four_planes(first_b, first_b, high_b, FORM, GROUP, FAST)
        for index in tl.static_range(4):
            x = _plane_columns(xs, four, px, column, 4 * GROUP + index, K, LOADED, RAGGED)
            xa, xb = sides(x, BM)
            word = meta[meta_word(FORM, GROUP, index)]
            acc += tl.dot(left[index], tl.trans(xa)) * scale(word, d, FORM, index, 0, FAST)[:, None]
            acc += tl.dot(right[index], tl.trans(xb)) * scale(word, d, FORM, index, 1, FAST)[:, None]
    else:
        first, second = fragment(first, BN, _WIDTH), fragment(second, BN, _WIDTH)
        upper = fragment(high, BN, _WIDTH) if FORM.high_bits > 0 else first
        planes = four_planes(first, second, upper, FORM, GROUP, FAST)
        for index in tl.static_range(4):
            x = _plane_columns(xs, four, px, column, 4 * GROUP + index, K, LOADED, RAGGED)
            x = tl.trans(fragment(x, BM, _WIDTH))
            word = meta[meta_word(FORM, GROUP, index)]
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
def load_activations(
    px: tl.tensor,
    ps: tl.tensor,
    s: tl.tensor,
    live: tl.tensor,
    K: tl.tensor,
    counts: tl.tensor,
    FORM: tl.constexpr,
    BM: tl.constexpr,
    RAGGED: tl.constexpr,
    LOADED: tl.constexpr,
    APART: tl.constexpr,
) -> tl.tuple:
    """The columns of all planes of super-block s where LOADED is 8, APART by a load for each; their means."""
    at = s * (8 * _WIDTH)
    xs: tl.tuple = ()
    if LOADED == 8 and APART:
        for plane in tl.static_range(8):
            xs = xs + (_columns(px, at + plane * _WIDTH, K, RAGGED),)
    elif LOADED == 8:
        xs = _eight_columns(px, at, live, K, BM, RAGGED)
    means = 0
    if FORM.minima:
        if RAGGED:
            there = (s * 16 + tl.arange(0, 16))[None, :] < counts
            means = tl.load(ps + s * 16, mask=there, other=0) * 0.0625
        else:
            means = tl.load(ps + s * 16) * 0.0625
    return xs, means


@triton.jit
def add_block(
    acc: tl.tensor,
    loaded: tl.tuple,
    activations: tl.tuple,
    s: tl.tensor,
    px: tl.tensor,
    live: tl.tensor,
    K: tl.tensor,
    FORM: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    RAGGED: tl.constexpr,
    BEFORE: tl.constexpr,
    FAST: tl.constexpr,
    WARPS: tl.constexpr,
    LOADED: tl.constexpr,
) -> tl.tensor:
    """acc and the products of super-block s: what `load_block` and `load_activations` gave.

    LOADED: 8 where the columns of all planes are among these, else of how many planes one load here is.
    """
    quants, upper, words, minima = loaded
    xs, means = activations
    if FORM.high_bits > 0:
        upper = upper.to(tl.int16)
    count: tl.constexpr = FORM.words
    meta: tl.tuple = ()
    for number in tl.static_range(count):
        meta = meta + (_ordered(words[number], WARPS, BN),)
    d, factor_d = 0, 0.0
    if FORM.scales == "k":
        d = meta[last_word(FORM)]
        factor_d = float16_in(d, False)
    part, odd = acc, acc
    if BEFORE:
        part = tl.zeros((BN, BM), tl.float32)
        odd = tl.zeros((BN, BM), tl.float32)
    at = s * (8 * _WIDTH)
    for group in tl.static_range(2):
        part, odd = _group(
            part, odd, quants, upper, meta, factor_d, xs, px, live, at, K,
            FORM, group, BN, BM, RAGGED, BEFORE, FAST, LOADED,
        )  # fmt: skip
    if BEFORE:
        even_factor: tl.constexpr = factor(FORM, 0, FAST)
        odd_factor: tl.constexpr = factor(FORM, 1, FAST)
        acc += part * (factor_d * even_factor)[:, None] + odd * (factor_d * odd_factor)[:, None]
    else:
        acc = part
    if FORM.minima:
        acc = _minima(acc, meta, minima, means, d, FORM, BN, BM, FAST)
    return acc
