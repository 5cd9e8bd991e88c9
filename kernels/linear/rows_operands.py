"""Operands of the products in `rows_kernels`: quants and scales of planes in registers.

A lane of a warp reads 8 (or 2 times 4) consecutive columns and hands them to the matrix instruction as
they lie: `fragment` renames the columns of both operands alike, which leaves the product as it is. Other
kernels take their weights from `kernels.planes.unpack`, scaled in float16 and for any tile.
"""

import triton
import triton.language as tl

from kernels.linear.rows_fields import factor, quants_ptx, scale_byte_ptx, scale_kind
from kernels.planes.fields import high_place, scale_byte, table_entry, table_size
from kernels.planes.unpack import float16_in, half_e4m3


@triton.jit
def fragment(values: tl.tensor, R: tl.constexpr, W: tl.constexpr) -> tl.tensor:
    """[R, W]: column 8 c + 2 i + b (W = 32) or 4 c + 2 i + b (16) goes to 8 i + 2 c + b."""
    parts = tl.reshape(values, (R, 4, W // 8, 2))
    return tl.reshape(tl.permute(parts, (0, 2, 1, 3)), (R, W))


@triton.jit
def sides(values: tl.tensor, R: tl.constexpr) -> tl.tuple:
    """The halves [R, 16] of planes whose scales serve 16 columns, each as `fragment` gives it."""
    parts = tl.permute(tl.reshape(values, (R, 2, 4, 2, 2)), (0, 3, 2, 4, 1))
    first, second = tl.split(parts)
    return tl.reshape(first, (R, 16)), tl.reshape(second, (R, 16))


@triton.jit
def four_planes(
    first: tl.tensor,
    second: tl.tensor,
    high: tl.tensor,
    FORM: tl.constexpr,
    GROUP: tl.constexpr,
    FAST: tl.constexpr,
) -> tl.tuple:
    """Planes 4 GROUP to 4 GROUP + 3 as float16, `value - offset` over `factor`, of the words' shape."""
    if FAST:
        return tl.inline_asm_elementwise(
            quants_ptx(FORM, GROUP),
            "=&r,=&r,=&r,=&r,r,r,r",
            [first, second, high],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )
    return (
        _plane(first, second, high, FORM, GROUP, 0),
        _plane(first, second, high, FORM, GROUP, 1),
        _plane(first, second, high, FORM, GROUP, 2),
        _plane(first, second, high, FORM, GROUP, 3),
    )


@triton.jit
def _plane(
    first: tl.tensor,
    second: tl.tensor,
    high: tl.tensor,
    FORM: tl.constexpr,
    GROUP: tl.constexpr,
    INDEX: tl.constexpr,
) -> tl.tensor:
    if FORM.bits == 8:
        word = (first if INDEX < 2 else second) >> (8 * (INDEX % 2))
    elif FORM.bits == 4:
        word = first >> (4 * INDEX)
    else:
        word = first >> (8 * GROUP + 2 * INDEX)
    quant = word.to(tl.int32) & ((1 << FORM.bits) - 1)
    if FORM.high_bits > 0:
        upper = high.to(tl.int32) >> high_place(FORM, 4 * GROUP + INDEX)
        quant |= (upper & ((1 << FORM.high_bits) - 1)) << FORM.bits
    if table_size(FORM) > 0:
        value = tl.zeros_like(quant)
        for index in tl.static_range(table_size(FORM)):
            value += tl.where(quant == index, table_entry(FORM, index), 0)
        return value.to(tl.float16)
    return (quant - FORM.offset).to(tl.float16)


@triton.jit
def scale(
    word: tl.tensor,
    d: tl.tensor,
    FORM: tl.constexpr,
    INDEX: tl.constexpr,
    SIDE: tl.constexpr,
    FAST: tl.constexpr,
) -> tl.tensor:
    """float32 scale of one plane (or one side of it) times its factor, from its word of `meta`."""
    kind: tl.constexpr = scale_kind(FORM)
    times: tl.constexpr = factor(FORM, INDEX, FAST)
    byte: tl.constexpr = 8 * scale_byte(FORM, INDEX, SIDE)
    if kind == "half":
        return float16_in(word, INDEX % 2 == 1) * times
    if kind == "pair" or kind == "one":
        return float16_in(word, False) * times
    if kind == "e4m3":
        return half_e4m3((word >> byte) & 0xFF) * times
    if kind == "e8m0":
        power = (word >> byte) & 0xFF
        if FAST:
            # 2^(power - 128) times 2^15, whose exponent is that of a normal number.
            return ((tl.minimum(power, 240) + 14) << 23).to(tl.float32, bitcast=True)
        tiny = 0x00200000 << tl.minimum(power, 1)
        bits = tl.where(power < 2, tiny, (power - 1) << 23)
        return bits.to(tl.float32, bitcast=True) * times
    if kind == "signed":
        part = (word << (24 - byte)) >> 24
    elif kind == "nibbles":
        part = (word >> byte) & 0xF
    else:
        part = (word >> byte) & 0xFF
    return part.to(tl.float32) * (d * times)


@triton.jit
def small(quant: tl.tensor, FAST: tl.constexpr) -> tl.tensor:
    """A small integer as float16, with FAST 2^24 times smaller."""
    if FAST:
        return quant.to(tl.int16).to(tl.float16, bitcast=True)
    return quant.to(tl.float16)


@triton.jit
def scaled_plane(
    plane: tl.tensor, word: tl.tensor, FORM: tl.constexpr, INDEX: tl.constexpr, FAST: tl.constexpr
) -> tl.tensor:
    """A plane times its scale byte in float16, which is exact: both are integers, and so is the product."""
    byte: tl.constexpr = scale_byte(FORM, INDEX, 0)
    if FAST:
        twice = tl.inline_asm_elementwise(
            scale_byte_ptx(byte), "=&r,r", [word], dtype=tl.int32, is_pure=True, pack=1
        )
        return tl.inline_asm_elementwise(
            "mul.rn.f16x2 $0, $1, $2;",
            "=r,r,r,r",
            [plane, twice[:, None]],
            dtype=tl.float16,
            is_pure=True,
            pack=2,
        )
    return plane * ((word >> (8 * byte)) & 0xFF).to(tl.float16)[:, None]
