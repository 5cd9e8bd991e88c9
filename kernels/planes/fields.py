"""Where the fields of planes lie, and the PTX that takes them out: evaluated when a kernel compiles.

A field put under the float16 exponent 0x6400 reads as 1024 + u * 2^place, from which one exact
subtraction or fused multiply-add makes u - offset; so a register of two weights costs a mask, that
operation and the scaling. `plane` counts from the first of a half (128 columns); the second half of a
super-block is addressed by shifting further, by its index, where both halves share a word.
Products of few rows have PTX of their own (`kernels.linear.rows_fields`), which leaves the scale out.
"""

import triton

from kernels.planes.layout import MXFP4_TABLE, PLANES, WIDTH, PlanesFormat


@triton.constexpr_function
def word_step(form: PlanesFormat) -> int:
    """How much higher the second half's quants lie in a word that both halves share."""
    return 8 if form.bits == 2 else 0


@triton.constexpr_function
def word_count(form: PlanesFormat) -> int:
    """Words of quants of one super-block."""
    return PLANES * form.bits // 16


@triton.constexpr_function
def word_index(form: PlanesFormat, plane: int) -> int:
    """Which of the half's quant words holds one of its planes."""
    return plane // (16 // form.bits)


@triton.constexpr_function
def word_place(form: PlanesFormat, plane: int) -> int:
    """Lowest bit of a plane of the first half in its quant word."""
    return plane % (16 // form.bits) * form.bits


@triton.constexpr_function
def high_place(form: PlanesFormat, plane: int) -> int:
    """Lowest bit of a plane of the first half in the word of upper bits."""
    return form.high_places[plane]


@triton.constexpr_function
def high_step(form: PlanesFormat) -> int:
    """How much higher the second half's upper bits lie."""
    return form.high_places[PLANES // 2] - form.high_places[0]


@triton.constexpr_function
def low_mask(bits: int) -> int:
    """A mask of the lowest bits."""
    return (1 << bits) - 1


@triton.constexpr_function
def table_entry(form: PlanesFormat, index: int) -> int:
    """What a quant stands for, in units of the form."""
    return form.table[index]


@triton.constexpr_function
def table_size(form: PlanesFormat) -> int:
    """Entries of the table that quants stand for, 0 where they stand for themselves."""
    return len(form.table)


@triton.constexpr_function
def scale_byte(form: PlanesFormat, plane: int, side: int) -> int:
    """Which byte of its word is the scale of a plane of the half."""
    return plane % 2 * 2 + side if form.scale_width == 16 else plane


@triton.constexpr_function
def scale_operand(form: PlanesFormat, plane: int) -> int:
    """Which of `half_operands`' values holds the scale of a plane of the half."""
    if form.scales == "pair":
        return 3 + plane
    return 3 + plane // 2 if form.scales == "half" or form.scale_width == 16 else 3


@triton.constexpr_function
def byte_scales(form: PlanesFormat) -> str:
    """Which bytes the scales are: "minima" (scales and minima apart), "nibbles", "signed"."""
    if not form.minima:
        return "signed"
    return "minima" if form.scale_width == WIDTH else "nibbles"


@triton.constexpr_function
def _twice(value: float) -> str:
    """A normal float16 in both halves of a register, as a PTX literal."""
    sign, size, exponent = int(value < 0), max(value, -value), 15
    while size >= 2:
        size, exponent = size / 2, exponent + 1
    while size < 1:
        size, exponent = size * 2, exponent - 1
    bits = sign << 15 | exponent << 10 | int((size - 1) * 1024)
    return f"0x{bits:04x}{bits:04x}"


@triton.constexpr_function
def scale_pair_ptx(form: PlanesFormat, byte: int) -> str:
    """$0 = {s, m} (or {s, s}) from one byte of the words $1, $2 and the word $3 of d and dmin."""
    kind = byte_scales(form)
    if kind == "minima":
        take = f"prmt.b32 t, $1, $2, 0x{4 + byte}{4 + byte}{byte}{byte};"
        take += f"lop3.b32 t, t, 0x00ff00ff, {_twice(1024)}, 0xea; mov.b32 k, {_twice(1024)};"
        return "{.reg .b32 t, k;" + take + "sub.rn.f16x2 t, t, k; mul.rn.f16x2 $0, t, $3;}"
    spread = f"0x{byte}{byte}{byte}{byte}"
    if kind == "nibbles":
        take = f"prmt.b32 t, $1, $1, {spread}; lop3.b32 t, t, 0x00f0000f, {_twice(1024)}, 0xea;"
        take += "mov.b32 k, 0x2c003c00; mov.b32 c, 0xd400e400;"
        return "{.reg .b32 t, k, c;" + take + "fma.rn.f16x2 t, t, k, c; mul.rn.f16x2 $0, t, $3;}"
    take = f"prmt.b32 t, $1, $1, {spread}; lop3.b32 t, t, 0x00ff00ff, 0x64806480, 0x6a;"
    take += f"mov.b32 k, {_twice(1152)}; prmt.b32 d, $3, $3, 0x1010;"
    return "{.reg .b32 t, k, d;" + take + "sub.rn.f16x2 t, t, k; mul.rn.f16x2 $0, t, d;}"


@triton.constexpr_function
def weights_ptx(form: PlanesFormat, plane: int) -> str:
    """$0 = two weights from quant words $1, {s, m} in $2, the half's index $4, upper bits $6."""
    place = word_place(form, plane)
    lines = [".reg .b32 t, u, s, m, k, c;", "mov.b32 t, $1;"]
    if form.bits == 2:
        lines = [lines[0], "shl.b32 k, $4, 3; shr.u32 t, $1, k;"]
    elif place & 8:
        lines = [lines[0], "shr.u32 t, $1, 8;"]
    place &= 7
    field = low_mask(form.bits) << place
    high = _high_ptx(form, plane, place + form.bits) if form.high_bits else []
    if form.table == MXFP4_TABLE:
        lines += _e2m1_ptx(place)
    elif form.table:
        lines += [f"and.b32 t, t, 0x{field:04x}{field:04x};", *high, *_table_ptx(form, place)]
    else:
        lines.append(f"lop3.b32 t, t, 0x{field:04x}{field:04x}, {_twice(1024)}, 0xea;")
        lines += [*high, *_difference_ptx(place, form.offset)]
    lines.append("prmt.b32 s, $2, $2, 0x1010;")
    if form.minima:
        lines.append("prmt.b32 m, $2, $2, 0x3232;")
        lines.append("" if form.scales == "pair" else "neg.f16x2 m, m;")
        lines.append("fma.rn.f16x2 $0, t, s, m;")
    else:
        lines.append("mul.rn.f16x2 $0, t, s;")
    return "{" + "\n".join(lines) + "}"


@triton.constexpr_function
def _difference_ptx(place: int, offset: int) -> list[str]:
    """t = u - offset from t = 1024 + u * 2^place."""
    if place == 0:
        return [f"mov.b32 k, {_twice(1024 + offset)};", "sub.rn.f16x2 t, t, k;"]
    scale = 2.0**-place
    constants = f"mov.b32 k, {_twice(scale)}; mov.b32 c, {_twice(-1024 * scale - offset)};"
    return [constants, "fma.rn.f16x2 t, t, k, c;"]


@triton.constexpr_function
def _high_ptx(form: PlanesFormat, plane: int, target: int) -> list[str]:
    """Put the upper bits of a plane into t, from bit `target` upwards."""
    lines = [f"mul.lo.u32 k, $4, {high_step(form)}; shr.u32 u, $6, k;"]
    lines.append(f"shl.b32 u, u, {target - form.high_places[plane]};")
    field = low_mask(form.high_bits) << target
    return [*lines, f"lop3.b32 t, u, 0x{field:04x}{field:04x}, t, 0xea;"]


@triton.constexpr_function
def _e2m1_ptx(place: int) -> list[str]:
    """t = doubled 4-bit floats: sign, exponent and mantissa put into place are the value * 2^-14."""
    lines = [f"shr.u32 u, t, {place};", "shl.b32 t, u, 9; shl.b32 u, u, 12;"]
    lines.append("and.b32 t, t, 0x0e000e00; lop3.b32 t, u, 0x80008000, t, 0xea;")
    return [*lines, f"mov.b32 k, {_twice(2.0**15)}; mul.rn.f16x2 t, t, k;"]


@triton.constexpr_function
def _table_ptx(form: PlanesFormat, place: int) -> list[str]:
    """t = entries of the table: a byte permutation looks up 8 at a time, biased by 128."""
    quads = [
        sum((form.table[i + j] + 128) << (8 * j) for j in range(4)) for i in range(0, len(form.table), 4)
    ]
    names = [f"0x{quad:08x}" for quad in quads]
    lines = [f"shr.u32 t, t, {place}; shr.u32 u, t, 12; or.b32 t, t, u;"]
    if len(quads) == 2:
        lines.append(f"mov.b32 k, {names[0]}; mov.b32 c, {names[1]}; prmt.b32 t, k, c, t;")
    else:
        lines.append("and.b32 u, t, 0x77;")
        lines.append(f"mov.b32 k, {names[0]}; mov.b32 c, {names[1]}; prmt.b32 s, k, c, u;")
        lines.append(f"mov.b32 k, {names[2]}; mov.b32 c, {names[3]}; prmt.b32 m, k, c, u;")
        lines.append("shr.u32 t, t, 1; lop3.b32 t, t, 0x44, 0x10, 0xea; prmt.b32 t, s, m, t;")
    lines.append("mov.b32 k, 0x64646464; prmt.b32 t, t, k, 0x4140;")
    if form.unit == 1:
        return [*lines, f"mov.b32 k, {_twice(1152)}; sub.rn.f16x2 t, t, k;"]
    constants = f"mov.b32 k, {_twice(form.unit)}; mov.b32 c, {_twice(-1152 * form.unit)};"
    return [*lines, constants, "fma.rn.f16x2 t, t, k, c;"]
