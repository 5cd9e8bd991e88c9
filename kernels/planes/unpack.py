"""Weights of planes inside a Triton kernel: from words and scales to float16 or float32 in registers.

Building blocks for kernels that read `kernels.planes.layout`. The unit is the half: 128 consecutive
columns of a super-block. `half_operands` loads what one needs; `plane_float32` gives one plane as the
file's reference defines it; `chunk_float16` gives 64 columns as a dot operand, which stays in registers.

float16 weights are `(value - offset) * s - m` in one fused operation, s and m rounded to float16 first:
relative error 4e-4 of a product's length. With FAST they come from inline PTX (`planes.fields`), two
weights per 32-bit register. Without it plain operations round the float32 weight.
"""

import triton
import triton.language as tl

from kernels.planes.fields import (
    byte_scales,
    high_place,
    high_step,
    low_mask,
    scale_byte,
    scale_operand,
    scale_pair_ptx,
    table_entry,
    table_size,
    weights_ptx,
    word_count,
    word_index,
    word_place,
    word_step,
)
from kernels.planes.layout import ROWS, WIDTH

HALF = 128
"""Columns of one half of a super-block."""
CHUNK = 64
"""Columns of one dot operand."""

_ROWS = tl.constexpr(ROWS)
_WIDTH = tl.constexpr(WIDTH)


@triton.jit
def row_pointers(
    quants: tl.tensor,
    high: tl.tensor,
    meta: tl.tensor,
    tile: tl.tensor,
    row: tl.tensor,
    S: int,
    FORM: tl.constexpr,
) -> tl.tuple:
    """The first words of quants and upper bits [R, 32] and of scales [R] of rows of tiles.

    tile int64, a scalar or [R]; row [R], the row within its tile; S, super-blocks of one row.
    """
    WORD: tl.constexpr = _ROWS * _WIDTH
    within = (row * _WIDTH)[:, None] + tl.arange(0, _WIDTH)[None, :]
    if tile.type.is_block():
        wide = tile[:, None]
    else:
        wide = tile
    pq = quants + (wide * S * (word_count(FORM) * WORD) + within)
    ph = high + (wide * S * WORD + within)
    return pq, ph, meta + (tile * S * (FORM.words * _ROWS) + row)


@triton.jit
def _half_quants(
    pq: tl.tensor, half: tl.tensor, block: tl.tensor, FORM: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Two words of quants of half `half`, the same twice where it has one."""
    WORD: tl.constexpr = _ROWS * _WIDTH
    WORDS: tl.constexpr = word_count(FORM)
    if WORDS == 1:
        w0 = tl.load(pq + block * WORD)
        w1 = w0
    elif WORDS == 2:
        w0 = tl.load(pq + half * WORD)
        w1 = w0
    else:
        w0 = tl.load(pq + half * (2 * WORD))
        w1 = tl.load(pq + half * (2 * WORD) + WORD)
    return w0, w1


@triton.jit
def _half_scales(pm: tl.tensor, h: tl.tensor, FORM: tl.constexpr) -> tl.tuple:
    """Four words of scales of half `h` of the super-block whose words `pm` points at."""
    if FORM.scales == "pair":
        m0 = tl.load(pm + 4 * h * _ROWS)
        m1 = tl.load(pm + (4 * h + 1) * _ROWS)
        m2 = tl.load(pm + (4 * h + 2) * _ROWS)
        m3 = tl.load(pm + (4 * h + 3) * _ROWS)
    elif FORM.scales == "half" or FORM.scales == "e4m3":
        m0 = tl.load(pm + 2 * h * _ROWS)
        m1 = tl.load(pm + (2 * h + 1) * _ROWS)
        m2 = m0
        m3 = m0
    elif FORM.scales == "one":
        m0 = tl.load(pm)
        m1 = m0
        m2 = m0
        m3 = m0
    elif FORM.scales == "e8m0":
        m0 = tl.load(pm + h * _ROWS)
        m1 = m0
        m2 = m0
        m3 = m0
    else:
        m2 = tl.load(pm + (FORM.words - 1) * _ROWS)
        m3 = m2
        if FORM.scale_width == 16:
            m0 = tl.load(pm + 2 * h * _ROWS)
            m1 = tl.load(pm + (2 * h + 1) * _ROWS)
        else:
            m0 = tl.load(pm + h * _ROWS)
            m1 = m0
            if FORM.minima:
                m1 = tl.load(pm + (2 + h) * _ROWS)
    return m0, m1, m2, m3


@triton.jit
def half_operands(
    pq: tl.tensor,
    ph: tl.tensor,
    pm: tl.tensor,
    pi: tl.tensor,
    half: tl.tensor,
    FORM: tl.constexpr,
    FAST: tl.constexpr,
) -> tl.tuple:
    """Load what the weights of half `half` (of the whole row) are made of.

    pq and ph [R, 32] point at the rows' first words of quants and upper bits, pm [R] at their first
    word of scales. → two words of quants, one of upper bits, four of scales, which half of its
    super-block.
    """
    h = half % 2
    block = half // 2
    pm += block * (FORM.words * _ROWS)
    w0, w1 = _half_quants(pq, half, block, FORM)
    high = w0
    if FORM.high_bits > 0:
        high = tl.load(ph + block * (_ROWS * _WIDTH)).to(tl.int16)
    m0, m1, m2, m3 = _half_scales(pm, h, FORM)
    index = m0
    if FAST and (FORM.high_bits > 0 or FORM.bits == 2):
        index = tl.load(pi + h * _ROWS)
    return w0, w1, high, m0, m1, m2, m3, h, index


@triton.jit
def float16_in(word: tl.tensor, UPPER: tl.constexpr) -> tl.tensor:
    """One of the two float16 of a word, as float32."""
    part = (word >> 16) if UPPER else word
    return (part & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _power(byte: tl.tensor) -> tl.tensor:
    """2 ** (byte - 128) as float32; 0 below the normal numbers."""
    return (tl.maximum(byte - 1, 0) << 23).to(tl.float32, bitcast=True)


@triton.jit
def half_e4m3(byte: tl.tensor) -> tl.tensor:
    """Half of a float with 4 exponent and 3 mantissa bits, as float32: its bits are a float16's over 256."""
    return (byte << 7).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 128


@triton.jit
def _scale_word(ops: tl.tuple, PLANE: tl.constexpr, FORM: tl.constexpr) -> tl.tensor:
    """The word of scales [R] that plane PLANE of the half needs."""
    return ops[scale_operand(FORM, PLANE)]


@triton.jit
def _scale_float32(ops: tl.tuple, PLANE: tl.constexpr, SIDE: tl.constexpr, FORM: tl.constexpr) -> tl.tuple:
    """Scale and minimum, float32 [R] each, of one of the half's planes (of its side SIDE, 0 or 1)."""
    word = _scale_word(ops, PLANE, FORM)
    if FORM.scales == "k":
        KIND: tl.constexpr = byte_scales(FORM)
        SHIFT: tl.constexpr = 8 * scale_byte(FORM, PLANE, SIDE)
        if KIND == "signed":
            scale = float16_in(ops[5], False) * ((word << (24 - SHIFT)) >> 24).to(tl.float32)
            minimum = scale * 0
        elif KIND == "nibbles":
            scale = float16_in(ops[5], False) * ((word >> SHIFT) & 15).to(tl.float32)
            minimum = float16_in(ops[5], True) * ((word >> (SHIFT + 4)) & 15).to(tl.float32)
        else:
            scale = float16_in(ops[5], False) * ((word >> SHIFT) & 255).to(tl.float32)
            minimum = float16_in(ops[5], True) * ((ops[4] >> SHIFT) & 255).to(tl.float32)
    elif FORM.scales == "e8m0":
        scale = _power((word >> (8 * PLANE)) & 255)
        minimum = scale * 0
    elif FORM.scales == "e4m3":
        scale = half_e4m3((word >> (8 * scale_byte(FORM, PLANE, SIDE))) & 255)
        minimum = scale * 0
    elif FORM.scales == "half":
        scale = float16_in(word, PLANE % 2 == 1)
        minimum = scale * 0
    else:
        scale = float16_in(word, False)
        minimum = -float16_in(word, True)
    return scale, minimum


@triton.jit
def plane_float32(ops: tl.tuple, PLANE: tl.constexpr, FORM: tl.constexpr) -> tl.tensor:
    """Plane PLANE of the half: float32 [R, 32]."""
    word = ops[word_index(FORM, PLANE)]
    quant = (word.to(tl.int32) >> (word_place(FORM, PLANE) + ops[7] * word_step(FORM))) & low_mask(FORM.bits)
    if FORM.high_bits > 0:
        upper = ops[2].to(tl.int32) >> (high_place(FORM, PLANE) + ops[7] * high_step(FORM))
        quant |= (upper & low_mask(FORM.high_bits)) << FORM.bits
    if table_size(FORM) > 0:
        value = quant.to(tl.float32)
        for index in tl.static_range(table_size(FORM)):
            value = tl.where(quant == index, FORM.unit * table_entry(FORM, index), value)
    else:
        value = (quant - FORM.offset).to(tl.float32)
    scale, minimum = _scale_float32(ops, PLANE, 0, FORM)
    scale = tl.broadcast_to(scale[:, None], value.shape)
    minimum = tl.broadcast_to(minimum[:, None], value.shape)
    if FORM.scale_width == 16:
        left = tl.arange(0, _WIDTH)[None, :] < 16
        right_scale, right_minimum = _scale_float32(ops, PLANE, 1, FORM)
        scale = tl.where(left, scale, right_scale[:, None])
        minimum = tl.where(left, minimum, right_minimum[:, None])
    value *= scale
    if FORM.minima:
        value -= minimum
    return value


@triton.jit
def _scale_pair(ops: tl.tuple, PLANE: tl.constexpr, SIDE: tl.constexpr, FORM: tl.constexpr) -> tl.tensor:
    """{s, m} of one of the half's planes (of its side SIDE), int32 [R] of two float16."""
    word = _scale_word(ops, PLANE, FORM)
    if FORM.scales == "k":
        pair = tl.inline_asm_elementwise(
            scale_pair_ptx(FORM, scale_byte(FORM, PLANE, SIDE)),
            "=r,r,r,r",
            [word, ops[4], ops[5]],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    elif FORM.scales == "e8m0":
        scale = _power((word >> (8 * PLANE)) & 255)
        pair = scale.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32)
    elif FORM.scales == "e4m3":
        scale = half_e4m3((word >> (8 * scale_byte(FORM, PLANE, SIDE))) & 255)
        pair = scale.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32)
    elif FORM.scales == "half":
        pair = word >> (16 * (PLANE % 2))
    else:
        pair = word
    return pair


@triton.jit
def plane_float16(ops: tl.tuple, PLANE: tl.constexpr, FORM: tl.constexpr, FAST: tl.constexpr) -> tl.tensor:
    """Plane PLANE of the half: float16 [R, 32]."""
    if FAST:
        word = ops[word_index(FORM, PLANE)]
        pair = _scale_pair(ops, PLANE, 0, FORM)
        high = ops[2]
        index = ops[8]
        if FORM.scale_width == 16:
            pair = tl.join(pair, _scale_pair(ops, PLANE, 1, FORM))[:, :, None]
            word = tl.reshape(word, (word.shape[0], 2, 16))
            high = tl.reshape(high, word.shape)
            index = index[:, None, None]
        else:
            pair = pair[:, None]
            index = index[:, None]
        if FORM.high_bits > 0:
            weights = tl.inline_asm_elementwise(
                weights_ptx(FORM, PLANE),
                "=r,r,r,r,r,r,r",
                [word, tl.broadcast_to(pair, word.shape), tl.broadcast_to(index, word.shape), high],
                dtype=tl.float16,
                is_pure=True,
                pack=2,
            )
        elif FORM.bits == 2:
            weights = tl.inline_asm_elementwise(
                weights_ptx(FORM, PLANE),
                "=r,r,r,r,r,r",
                [word, tl.broadcast_to(pair, word.shape), tl.broadcast_to(index, word.shape)],
                dtype=tl.float16,
                is_pure=True,
                pack=2,
            )
        else:
            weights = tl.inline_asm_elementwise(
                weights_ptx(FORM, PLANE),
                "=r,r,r,r",
                [word, tl.broadcast_to(pair, word.shape)],
                dtype=tl.float16,
                is_pure=True,
                pack=2,
            )
        if FORM.scale_width == 16:
            weights = tl.reshape(weights, (word.shape[0], _WIDTH))
    else:
        weights = plane_float32(ops, PLANE, FORM).to(tl.float16)
    return weights


@triton.jit
def chunk_float16(ops: tl.tuple, INDEX: tl.constexpr, FORM: tl.constexpr, FAST: tl.constexpr) -> tl.tensor:
    """Columns 64 INDEX to 64 INDEX + 63 of the half: float16 [R, 64].

    In a dot operand's layout the two planes lie side by side without any movement.
    """
    first = plane_float16(ops, 2 * INDEX, FORM, FAST)
    second = plane_float16(ops, 2 * INDEX + 1, FORM, FAST)
    joined = tl.permute(tl.join(first, second), (0, 2, 1))
    return tl.reshape(joined, (first.shape[0], 2 * _WIDTH))
