"""A file's quantised blocks read by compiled code: quants, and the scale and offset of each group.

Every value of these types is quant · scale + offset with one rounding: scales are products of few bits,
exact in float32, and so are their products with a quant. What is read here is the file's own; values from
a table are quants that count from the table's least.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from llvmlite import ir

from kernels.cpu.compiler import F32, I8, I32, INTS, LANES, VECTOR, Emitter, Value
from kernels.quant.formats import FORMATS, GGMLType
from kernels.quant.nonlinear import E2M1_DOUBLED, IQ4

BYTES = ir.VectorType(I8, LANES)

Scales = tuple[Value, Value]
"""Of one group: scale and offset, in every lane."""


@dataclass(frozen=True, slots=True)
class BlockReader:
    """How one type's blocks are read."""

    group: int
    """Columns that share a scale: 16 or 32."""
    scales: Callable[[Emitter, Value], list[Value]]
    """(emitter, address of a block) → scale and offset, float32, where a block is one group; else vectors
    that hold, after another, the scales of all groups and the offsets of all groups."""
    quants: Callable[[Emitter, Value, Value], list[Value]]
    """(emitter, address of a block, number of a group in it, int64) → int32 vectors of 16 columns each."""
    halves: tuple[int, ...] = (0,)
    """Bytes of a block at which its float16 factors lie."""
    numbers: Callable[[Emitter, Value], Value] | None = None
    """(emitter, address of a block) → int32 of 16 lanes: the whole numbers that its scales are made of."""
    places: Callable[[Emitter, Value, Value], list[Value]] | None = None
    """As `quants`, before these are looked up in `table`."""
    table: tuple[int, ...] = ()


class BlockScales:
    """The scales of the groups of one block after another.

    Those of many groups are computed together and lie on the stack: from there a processor reads one into
    all lanes at no cost.
    """

    def __init__(self, e: Emitter, type: GGMLType) -> None:
        self._e, self._reader = e, READERS[type]
        self._groups = FORMATS[type].elements // self._reader.group
        self._places = e.array(2 * self._groups)
        self._only: list[Value] = []

    def begin(self, block: Value) -> None:
        """Read those of a block."""
        e, vectors = self._e, self._reader.scales(self._e, block)
        if self._groups == 1:
            self._only = [e.splat(value) for value in vectors]
            return
        for number, vector in enumerate(vectors):
            e.store(vector, e.address(self._places, e.const(LANES * number)))

    def of(self, number: Value) -> Scales:
        """Those of one group, int64."""
        if self._groups == 1:
            return self._only[0], self._only[1]
        e = self._e
        places = number, e.ir.add(number, e.const(self._groups))
        scale, offset = (e.splat(e.load(e.address(self._places, at), F32)) for at in places)
        return scale, offset


def _half(e: Emitter, block: Value, at: int) -> Value:
    place = e.address(block, e.const(at), I8)
    return e.ir.fpext(e.ir.load(place, typ=ir.HalfType(), align=1), F32)


def _vector(e: Emitter, block: Value, at: Value) -> Value:
    """16 bytes as int32."""
    return e.ir.zext(e.load(e.address(block, at, I8), BYTES), INTS)


def _lanes(values: Iterable[int]) -> Value:
    return ir.Constant(INTS, list(values))


def _all(value: int) -> Value:
    return _lanes([value] * LANES)


def _word(value: int) -> Value:
    return ir.Constant(I32, value)


def _bits(e: Emitter, packed: Value, shift: Value, mask: int) -> Value:
    """(byte >> shift) & mask in every lane; shift int64."""
    return e.ir.and_(e.ir.lshr(packed, e.spread(e.ir.trunc(shift, I32))), _all(mask))


def _raised(e: Emitter, bits: Value, shift: int, low: Value) -> Value:
    return e.ir.or_(low, e.ir.shl(bits, _all(shift)))


def _sum(e: Emitter, start: int, *terms: tuple[int, Value]) -> Value:
    """start + Σ factor · value."""
    total = e.const(start)
    for factor, value in terms:
        total = e.ir.add(total, e.ir.mul(e.const(factor), value))
    return total


def _packed(e: Emitter, block: Value, start: int, count: int, lanes: Iterable[int]) -> Value:
    """Some of `count` bytes from byte `start` on, in any order, as int32."""
    kind = ir.VectorType(I8, count)
    return e.ir.zext(e.shuffle(e.load(e.address(block, e.const(start), I8), kind), list(lanes)), INTS)


def _fields(e: Emitter, packed: Value, shifts: Iterable[int], masks: Iterable[int]) -> Value:
    return e.ir.and_(e.ir.lshr(packed, _lanes(shifts)), _lanes(masks))


def _scaled(e: Emitter, numbers: Value, scale: Value) -> Value:
    """Whole numbers times one float32."""
    return e.ir.fmul(e.ir.sitofp(numbers, VECTOR), e.splat(scale))


def _of_middle(e: Emitter, scales: Value, middle: float) -> list[Value]:
    """For quants that count from -middle."""
    return [scales, e.ir.fmul(scales, e.vector(-middle))]


def _legacy(start: int, high: bool, middle: float | None) -> BlockReader:
    """16-bit scale, then a 16-bit offset unless quants count from `middle`; nibbles from byte `start`."""

    def scales(e: Emitter, block: Value) -> list[Value]:
        return [_half(e, block, 0), _half(e, block, 2)] if middle is None else _one(e, block, 0, middle)

    def quants(e: Emitter, block: Value, _number: Value) -> list[Value]:
        packed = _vector(e, block, e.const(start))
        both = [_bits(e, packed, e.const(shift), 15) for shift in (0, 4)]
        if not high:
            return both
        fifths = e.spread(e.ir.load(e.address(block, e.const(start - 4), I8), typ=I32, align=1))
        for half in range(2):
            bits = _fields(e, fifths, range(LANES * half, LANES * (half + 1)), [1] * LANES)
            both[half] = _raised(e, bits, 4, both[half])
        return both

    return BlockReader(32, scales, quants, (0, 2) if middle is None else (0,))


def _one(e: Emitter, block: Value, at: int, middle: float) -> list[Value]:
    scale = _half(e, block, at)
    return [scale, e.ir.fmul(scale, ir.Constant(F32, -middle))]


def _q8_0_quants(e: Emitter, block: Value, _number: Value) -> list[Value]:
    return [e.ir.xor(_vector(e, block, e.const(2 + LANES * half)), _all(128)) for half in range(2)]


def _six_bits(e: Emitter, block: Value) -> Value:
    """8 scales and 8 minima in 12 bytes from byte 4 on: those of the last four share bytes with all."""
    first = [0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 8, 9, 10, 11]
    low = _packed(e, block, 4, 12, first)
    low = _fields(e, low, [0] * 12 + [4] * 4, [*[63] * 4, *[15] * 4] * 2)
    top = _packed(e, block, 4, 12, [*range(4), *range(4), *range(4, 8), *range(4, 8)])
    top = _fields(e, top, [2] * LANES, [*[0] * 4, *[48] * 4] * 2)
    return e.ir.or_(low, top)


def _six_bit_scales(e: Emitter, block: Value) -> list[Value]:
    both = e.shuffle(_pair(e, _half(e, block, 0), e.ir.fneg(_half(e, block, 2))), [0] * 8 + [1] * 8)
    return [e.ir.fmul(e.ir.sitofp(_six_bits(e, block), VECTOR), both)]


def _pair(e: Emitter, first: Value, second: Value) -> Value:
    both = e.ir.insert_element(ir.Constant(VECTOR, ir.Undefined), first, _word(0))
    return e.ir.insert_element(both, second, _word(1))


def _nibbles_of_32(start: int, fifths: int | None) -> BlockReader:
    """Q4_K and Q5_K: nibbles from byte `start`, fifth bits from byte `fifths`."""

    def quants(e: Emitter, block: Value, number: Value) -> list[Value]:
        pair, shift = e.ir.lshr(number, e.const(1)), e.ir.mul(e.const(4), e.ir.and_(number, e.const(1)))
        made = []
        for half in range(2):
            packed = _vector(e, block, _sum(e, start + LANES * half, (32, pair)))
            quant = _bits(e, packed, shift, 15)
            if fifths is not None:
                bits = _bits(e, _vector(e, block, e.const(fifths + LANES * half)), number, 1)
                quant = _raised(e, bits, 4, quant)
            made.append(quant)
        return made

    return BlockReader(32, _six_bit_scales, quants, (0, 2), _six_bits)


def _digits(e: Emitter, number: Value) -> tuple[Value, Value, Value]:
    """A group of 16 as (half of the block, quarter of that, half of that)."""
    quarter = e.ir.and_(e.ir.lshr(number, e.const(1)), e.const(3))
    return e.ir.lshr(number, e.const(3)), quarter, e.ir.and_(number, e.const(1))


def _pairs(e: Emitter, block: Value, start: int, number: Value) -> Value:
    """2-bit fields of one of 16 groups of 16: four of 32 columns share 32 bytes."""
    half, quarter, side = _digits(e, number)
    packed = _vector(e, block, _sum(e, start, (32, half), (LANES, side)))
    return _bits(e, packed, e.ir.mul(quarter, e.const(2)), 3)


def _q6_k_numbers(e: Emitter, block: Value) -> Value:
    return e.ir.sext(e.load(e.address(block, e.const(192), I8), BYTES), INTS)


def _q6_k_scales(e: Emitter, block: Value) -> list[Value]:
    return _of_middle(e, _scaled(e, _q6_k_numbers(e, block), _half(e, block, 208)), 32.0)


def _q6_k_quants(e: Emitter, block: Value, number: Value) -> list[Value]:
    half, quarter, side = _digits(e, number)
    place = _sum(e, 0, (64, half), (32, e.ir.and_(quarter, e.const(1))), (LANES, side))
    shift = e.ir.mul(e.const(4), e.ir.lshr(quarter, e.const(1)))
    low = _bits(e, _vector(e, block, place), shift, 15)
    return [_raised(e, _pairs(e, block, 128, number), 4, low)]


def _q2_k_numbers(e: Emitter, block: Value) -> Value:
    """Scale and minimum, 4 bits each."""
    return _vector(e, block, e.const(0))


def _q2_k_scales(e: Emitter, block: Value) -> list[Value]:
    both = _q2_k_numbers(e, block)
    scales = _scaled(e, e.ir.and_(both, _all(15)), _half(e, block, 80))
    return [scales, _scaled(e, e.ir.lshr(both, _all(4)), e.ir.fneg(_half(e, block, 82)))]


def _q2_k_quants(e: Emitter, block: Value, number: Value) -> list[Value]:
    return [_pairs(e, block, 16, number)]


def _q3_k_numbers(e: Emitter, block: Value) -> Value:
    eighths, quarters = [*range(8)] * 2, [*range(4)] * 4
    low = _fields(e, _packed(e, block, 96, 8, eighths), [0] * 8 + [4] * 8, [15] * LANES)
    shifts = [2 * (lane // 4) for lane in range(LANES)]
    high = _fields(e, _packed(e, block, 104, 4, quarters), shifts, [3] * LANES)
    return e.ir.sub(_raised(e, high, 4, low), _all(32))


def _q3_k_scales(e: Emitter, block: Value) -> list[Value]:
    return _of_middle(e, _scaled(e, _q3_k_numbers(e, block), _half(e, block, 108)), 4.0)


def _q3_k_quants(e: Emitter, block: Value, number: Value) -> list[Value]:
    masks = _vector(e, block, e.ir.mul(e.ir.and_(number, e.const(1)), e.const(LANES)))
    thirds = _bits(e, masks, e.ir.lshr(number, e.const(1)), 1)
    return [_raised(e, thirds, 2, _pairs(e, block, 32, number))]


def _from_table(
    start: int,
    table: tuple[int, ...],
    scales: Callable[[Emitter, Value], list[Value]],
    halves: tuple[int, ...] = (0,),
    numbers: Callable[[Emitter, Value], Value] | None = None,
) -> BlockReader:
    """16 bytes of nibbles for each group, from byte `start` on: entries of a table, less the least."""
    entries = ir.Constant(BYTES, [entry - min(table) for entry in table])
    four, low = ir.Constant(BYTES, [4] * LANES), ir.Constant(BYTES, [15] * LANES)

    def nibbles(e: Emitter, block: Value, number: Value) -> list[Value]:
        packed = e.load(e.address(block, _sum(e, start, (LANES, number)), I8), BYTES)
        return [e.ir.and_(packed, low), e.ir.lshr(packed, four)]

    def quants(e: Emitter, block: Value, number: Value) -> list[Value]:
        return [e.ir.zext(_looked_up(e, entries, part), INTS) for part in nibbles(e, block, number)]

    def places(e: Emitter, block: Value, number: Value) -> list[Value]:
        return [e.ir.zext(part, INTS) for part in nibbles(e, block, number)]

    return BlockReader(32, scales, quants, halves, numbers, places, table)


def _looked_up(e: Emitter, entries: Value, places: Value) -> Value:
    """LLVM makes one byte shuffle of it where the processor has that."""
    found = ir.Constant(BYTES, ir.Undefined)
    for lane in map(_word, range(LANES)):
        entry = e.ir.extract_element(entries, e.ir.extract_element(places, lane))
        found = e.ir.insert_element(found, entry, lane)
    return found


def _iq4_xs_numbers(e: Emitter, block: Value) -> Value:
    """Those of the 8 groups, twice."""
    low = _packed(e, block, 4, 4, [lane % 8 // 2 for lane in range(LANES)])
    low = _fields(e, low, [0, 4] * 8, [15] * LANES)
    high = _packed(e, block, 2, 2, [lane % 8 // 4 for lane in range(LANES)])
    high = _fields(e, high, [0, 2, 4, 6] * 4, [3] * LANES)
    return e.ir.sub(_raised(e, high, 4, low), _all(32))


def _iq4_xs_scales(e: Emitter, block: Value) -> list[Value]:
    scales = _scaled(e, _iq4_xs_numbers(e, block), _half(e, block, 0))
    return [e.ir.fmul(scales, ir.Constant(VECTOR, [1.0] * 8 + [float(min(IQ4))] * 8))]


def _mxfp4_numbers(e: Emitter, block: Value) -> Value:
    """The exponent."""
    return e.spread(e.ir.zext(e.load(block, I8), I32))


def half_power(e: Emitter, exponents: Value) -> Value:
    """Half of a power of two from E8M0, since the table is doubled: int32 → float32 of 16 lanes."""
    small = e.ir.icmp_signed("<", exponents, _all(2))
    normal = e.ir.shl(e.ir.sub(exponents, _all(1)), _all(23))
    # A shift by more than the width has no result: it is bounded for the lanes that are not used.
    tiny = e.ir.shl(_all(1 << 21), e.ir.and_(exponents, _all(1)))
    return e.ir.bitcast(e.ir.select(small, tiny, normal), VECTOR)


def _mxfp4_scales(e: Emitter, block: Value) -> list[Value]:
    scale = e.ir.extract_element(half_power(e, _mxfp4_numbers(e, block)), _word(0))
    return [scale, e.ir.fmul(scale, ir.Constant(F32, float(min(E2M1_DOUBLED))))]


def _first_half(middle: float) -> Callable[[Emitter, Value], list[Value]]:
    return lambda e, block: _one(e, block, 0, middle)


READERS: dict[GGMLType, BlockReader] = {
    GGMLType.Q4_0: _legacy(2, high=False, middle=8.0),
    GGMLType.Q4_1: _legacy(4, high=False, middle=None),
    GGMLType.Q5_0: _legacy(6, high=True, middle=16.0),
    GGMLType.Q5_1: _legacy(8, high=True, middle=None),
    GGMLType.Q8_0: BlockReader(32, _first_half(128.0), _q8_0_quants),
    GGMLType.Q2_K: BlockReader(16, _q2_k_scales, _q2_k_quants, (80, 82), _q2_k_numbers),
    GGMLType.Q3_K: BlockReader(16, _q3_k_scales, _q3_k_quants, (108,), _q3_k_numbers),
    GGMLType.Q4_K: _nibbles_of_32(16, None),
    GGMLType.Q5_K: _nibbles_of_32(48, 16),
    GGMLType.Q6_K: BlockReader(16, _q6_k_scales, _q6_k_quants, (208,), _q6_k_numbers),
    GGMLType.IQ4_NL: _from_table(2, IQ4, _first_half(float(-min(IQ4)))),
    GGMLType.IQ4_XS: _from_table(8, IQ4, _iq4_xs_scales, numbers=_iq4_xs_numbers),
    GGMLType.MXFP4: _from_table(1, E2M1_DOUBLED, _mxfp4_scales, (), _mxfp4_numbers),
}
"""The types whose values are affine in their quants, which are bytes."""
