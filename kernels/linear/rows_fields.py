"""What `linear_rows` kernels take from planes before a dot product: evaluated when a kernel compiles.

On NVIDIA a masked quant already is a float16, a subnormal one: u * 2^-24 for a field at bit 0, sixteen
times that at bit 4. Tensor cores multiply such numbers exactly, so a quant costs half an instruction and
its power of two goes into the scale that follows (`factor`). Bytes and tables go under the exponent
0x6400 (1024 + u) and lose 1152 again; 4-bit floats are put where float16 has its fields. Elsewhere quants
are converted and every factor is that of a table's entries.

Where a field lies is asked of `kernels.planes.fields`. The PTX there serves a tile of any kernel and
scales every weight; here four planes are taken at once for a matrix instruction, and scaled after it.
"""

import triton

from kernels.planes.fields import byte_scales, word_place
from kernels.planes.layout import MXFP4_TABLE, WIDTH, PlanesFormat


@triton.constexpr_function
def planes_at_once(form: PlanesFormat, rows: int, capped: bool, apart: bool) -> int:
    """Planes whose activations are had at once: all eight, half of them or one, as registers hold.

    capped: whether a program has fewer registers than its compiler would take. apart: whether weights are
    in registers before; each plane is a load of its own then.
    """
    if apart:
        return 8 if form.scale_width == WIDTH else 1
    if rows > 8:
        return 1
    if form.scale_width < WIDTH:
        return 4
    if form.bits == 4 and form.scales == "k":
        return 4 if capped else 8
    return 1


@triton.constexpr_function
def minima_by_lane(form: PlanesFormat, rows: int) -> bool:
    """Whether each lane loads the minima that it multiplies: for more rows registers have no room."""
    return rows == 8 and scale_kind(form) == "minima"


@triton.constexpr_function
def factor(form: PlanesFormat, index: int, fast: bool) -> float:
    """What products with plane `index` of four are multiplied by."""
    if fast and form.table == MXFP4_TABLE:
        return float(1 << 15)
    if not fast or form.bits == 8 or form.table:
        return form.unit
    return float(1 << 24) / (1 << _place(form, index))


@triton.constexpr_function
def meta_word(form: PlanesFormat, group: int, index: int) -> int:
    """Word of `meta` that holds the scale of plane `index` of a group of four."""
    if form.scales == "pair":
        return 4 * group + index
    if form.scales == "half" or form.scale_width < WIDTH:
        return 2 * group + index // 2
    return 0 if form.scales == "one" else group


@triton.constexpr_function
def scale_kind(form: PlanesFormat) -> str:
    """How a scale is read: as `byte_scales` says, or as the form's scales are called."""
    return byte_scales(form) if form.scales == "k" else form.scales


@triton.constexpr_function
def last_word(form: PlanesFormat) -> int:
    """Word of `meta` with d and dmin."""
    return form.words - 1


@triton.constexpr_function
def quants_ptx(form: PlanesFormat, group: int) -> str:
    """$0 to $3 = planes of a group as float16 pairs, from words $4, $5 (8-bit quants) and upper bits $6."""
    if form.table == MXFP4_TABLE:
        return _e2m1_ptx()
    if form.table:
        return _table_ptx(form.table) if form.bits == 4 else _short_table_ptx(form, group)
    if form.bits == 8:
        return _bytes_ptx()
    text = "{.reg .b32 t, a, b, k;"
    if form.bits == 4:
        text += "shr.u32 t, $4, 8;"
        words, highs = ("$4", "$4", "t", "t"), ("a", "a", "b", "b")
    else:
        text += f"shr.u32 t, $4, {8 * group};"
        words, highs = ("t", "t", "t", "t"), ("a", "a", "a", "a")
    if form.high_bits:
        text += _shift_ptx("a", form.bits - form.high_places[4 * group])
        text += _shift_ptx("b", form.bits - form.high_places[4 * group + 2])
    for index in range(4):
        place = _place(form, index)
        low = _both(((1 << form.bits) - 1) << place)
        out = f"${index}"
        if form.high_bits:
            whole = _both(((1 << form.bits + form.high_bits) - 1) << place)
            text += f"lop3.b32 k, {words[index]}, {highs[index]}, {low}, 0xe4; and.b32 {out}, k, {whole};"
        else:
            text += f"and.b32 {out}, {words[index]}, {low};"
        if form.offset:
            text += f"mov.b32 k, {_both(form.offset << place)}; sub.rn.f16x2 {out}, {out}, k;"
    return text + "}"


@triton.constexpr_function
def scale_byte_ptx(byte: int) -> str:
    """$0 = an unsigned scale byte of the word $1 as a pair of equal float16."""
    take = f"prmt.b32 $0, $1, 0x64646464, 0x4{byte}4{byte}; mov.b32 k, 0x64006400;"
    return "{.reg .b32 k;" + take + "sub.rn.f16x2 $0, $0, k;}"


@triton.constexpr_function
def _place(form: PlanesFormat, index: int) -> int:
    """Bit at which a plane's quant lies once its word was shifted."""
    return word_place(form, index) % 8


@triton.constexpr_function
def _both(field: int) -> str:
    """A 16-bit constant in both halves of a register."""
    return f"0x{field:04x}{field:04x}"


@triton.constexpr_function
def _shift_ptx(register: str, left: int) -> str:
    """The word of upper bits shifted, so that they stand above their quants."""
    return f"shl.b32 {register}, $6, {left};" if left >= 0 else f"shr.u32 {register}, $6, {-left};"


@triton.constexpr_function
def _bytes_ptx() -> str:
    """Four planes of bytes from two words, less 128."""
    text = "{.reg .b32 k; mov.b32 k, 0x64806480;"
    for index in range(4):
        pick = "0x4341" if index % 2 else "0x4240"
        text += f"prmt.b32 ${index}, ${4 + index // 2}, 0x64646464, {pick};"
        text += f"sub.rn.f16x2 ${index}, ${index}, k;"
    return text + "}"


@triton.constexpr_function
def _e2m1_ptx() -> str:
    """Four planes of 4-bit floats: sign, exponent and mantissa put into place are the value * 2^-15."""
    text = "{.reg .b32 t, u;"
    for index in range(4):
        place = 4 * index
        text += _shift_of("t", 9 - place) + "and.b32 t, t, 0x0e000e00;"
        text += _shift_of("u", 12 - place) + f"lop3.b32 ${index}, u, 0x80008000, t, 0xea;"
    return text + "}"


@triton.constexpr_function
def _shift_of(register: str, left: int) -> str:
    """The word of quants shifted."""
    return f"shl.b32 {register}, $4, {left};" if left >= 0 else f"shr.u32 {register}, $4, {-left};"


@triton.constexpr_function
def _table_ptx(table: tuple[int, ...]) -> str:
    """Four nibbles of each of two words looked up at once: bits 0 to 2 pick in both halves of the table."""
    quads = [sum(table[4 * q + i] + 128 << 8 * i for i in range(4)) for q in range(4)]
    text = "{.reg .b32 w, s, l, h, u, v, x, y, k; mov.b32 k, 0x64806480;"
    for register, shift in (("u", 0), ("v", 16)):
        text += f"shr.u32 w, $4, {shift}; and.b32 s, w, 0x7777;"
        text += f"mov.b32 x, {quads[0]:#010x}; mov.b32 y, {quads[1]:#010x}; prmt.b32 l, x, y, s;"
        text += f"mov.b32 x, {quads[2]:#010x}; mov.b32 y, {quads[3]:#010x}; prmt.b32 h, x, y, s;"
        text += "and.b32 s, w, 0x8888; shr.u32 s, s, 1; or.b32 s, s, 0x3210;"
        text += f"prmt.b32 {register}, l, h, s;"
    text += "prmt.b32 x, u, v, 0x5140; prmt.b32 y, u, v, 0x7362; mov.b32 w, 0x64646464;"
    for index in range(4):
        pick = "0x4342" if index % 2 else "0x4140"
        text += f"prmt.b32 ${index}, {'xy'[index // 2]}, w, {pick}; sub.rn.f16x2 ${index}, ${index}, k;"
    return text + "}"


@triton.constexpr_function
def _short_table_ptx(form: PlanesFormat, group: int) -> str:
    """Quants of 2 bits and an upper one, looked up in a table of 8: those of planes i and i + 2 at once."""
    quads = [sum(form.table[4 * q + i] + 128 << 8 * i for i in range(4)) for q in range(2)]
    text = "{.reg .b32 t, a, s, u, x, y, w, k; mov.b32 k, 0x64806480; mov.b32 w, 0x64646464;"
    text += f"mov.b32 x, {quads[0]:#010x}; mov.b32 y, {quads[1]:#010x}; shr.u32 t, $4, {8 * group};"
    text += _shift_ptx("a", form.bits - form.high_places[4 * group])
    for index, low, whole in ((0, 0x33, 0x77), (1, 0xCC, 0x1DC)):
        text += f"lop3.b32 s, t, a, {_both(low)}, 0xe4; and.b32 s, s, {_both(whole)};"
        text += f"shr.u32 s, s, {2 * index}; shr.u32 u, s, 8; or.b32 s, s, u; prmt.b32 u, x, y, s;"
        for plane, pick in ((index, "0x4240"), (index + 2, "0x4341")):
            text += f"prmt.b32 ${plane}, u, w, {pick}; sub.rn.f16x2 ${plane}, ${plane}, k;"
    return text + "}"
