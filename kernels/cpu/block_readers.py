"""A file's quantised blocks read by compiled code: quants, and the scale and offset of each group.

Every value of these types is quant · scale + offset with one rounding: scales are products of few bits,
exact in float32, and so are their products with a quant. What is read here is the file's own.
"""

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from kernels.cpu.compiler import F32, I8, I32, INTS, LANES, Emitter, Value
from kernels.quant.formats import GGMLType

BYTES = ir.VectorType(I8, LANES)

Group = tuple[Value, Value, list[Value]]
"""(scale, offset, quants: int32 vectors of 16 columns each)."""


@dataclass(frozen=True, slots=True)
class BlockReader:
    """How the groups of one type's blocks are read."""

    group: int
    """Columns that share a scale: 16 or 32."""
    read: Callable[[Emitter, Value, Value], Group]
    """(emitter, address of a block, number of a group in it, int64)."""


def _half(e: Emitter, block: Value, at: int) -> Value:
    place = e.address(block, e.const(at), I8)
    return e.ir.fpext(e.ir.load(place, typ=ir.HalfType(), align=1), F32)


def _byte(e: Emitter, block: Value, at: Value) -> Value:
    """An unsigned byte as int32."""
    return e.ir.zext(e.load(e.address(block, at, I8), I8), I32)


def _vector(e: Emitter, block: Value, at: Value) -> Value:
    """16 bytes as int32."""
    return e.ir.zext(e.load(e.address(block, at, I8), BYTES), INTS)


def _all(value: int) -> Value:
    return ir.Constant(INTS, [value] * LANES)


def _word(value: int) -> Value:
    return ir.Constant(I32, value)


def _spread(e: Emitter, word: Value) -> Value:
    """An int32 in every lane."""
    first = e.ir.insert_element(ir.Constant(INTS, ir.Undefined), word, _word(0))
    return e.shuffle(first, [0] * LANES)


def _bits(e: Emitter, packed: Value, shift: Value, mask: int) -> Value:
    """(byte >> shift) & mask in every lane; shift int64."""
    return e.ir.and_(e.ir.lshr(packed, _spread(e, e.ir.trunc(shift, I32))), _all(mask))


def _raised(e: Emitter, bits: Value, shift: int, low: Value) -> Value:
    return e.ir.or_(low, e.ir.shl(bits, _all(shift)))


def _number(e: Emitter, value: Value) -> Value:
    return e.ir.sitofp(value, F32)


def _times(e: Emitter, scale: Value, factor: float) -> Value:
    return e.ir.fmul(scale, ir.Constant(F32, factor))


def _product(e: Emitter, block: Value, at: int, whole: Value) -> Value:
    return e.ir.fmul(_half(e, block, at), _number(e, whole))


def _sum(e: Emitter, start: int, *terms: tuple[int, Value]) -> Value:
    """start + Σ factor · value."""
    total = e.const(start)
    for factor, value in terms:
        total = e.ir.add(total, e.ir.mul(e.const(factor), value))
    return total


def _legacy(start: int, high: bool, middle: float | None) -> BlockReader:
    """16-bit scale, then a 16-bit offset unless quants count from `middle`; nibbles from byte `start`."""

    def read(e: Emitter, block: Value, _number: Value) -> Group:
        scale = _half(e, block, 0)
        offset = _half(e, block, 2) if middle is None else _times(e, scale, -middle)
        packed = _vector(e, block, e.const(start))
        quants = [_bits(e, packed, e.const(shift), 15) for shift in (0, 4)]
        if high:
            word = e.ir.load(e.address(block, e.const(start - 4), I8), typ=I32, align=1)
            fifths = _spread(e, word)
            for half in range(2):
                places = ir.Constant(INTS, [LANES * half + lane for lane in range(LANES)])
                bits = e.ir.and_(e.ir.lshr(fifths, places), _all(1))
                quants[half] = _raised(e, bits, 4, quants[half])
        return scale, offset, quants

    return BlockReader(32, read)


def _read_q8_0(e: Emitter, block: Value, _number: Value) -> Group:
    scale = _half(e, block, 0)
    quants = [e.ir.xor(_vector(e, block, e.const(2 + LANES * half)), _all(128)) for half in range(2)]
    return scale, _times(e, scale, -128.0), quants


def _six_bits(e: Emitter, block: Value, number: Value) -> list[Value]:
    """Scale and minimum of one of 8 groups, from the 12 bytes that begin at byte 4."""
    early = e.ir.icmp_signed("<", number, e.const(4))
    within = e.ir.and_(number, e.const(3))
    both = _byte(e, block, e.ir.add(within, e.const(12)))
    lows = e.ir.and_(both, _word(15)), e.ir.lshr(both, _word(4))
    parts = []
    for at, low in zip((4, 8), lows, strict=True):
        first = _byte(e, block, e.ir.add(within, e.const(at)))
        late = e.ir.or_(low, e.ir.shl(e.ir.lshr(first, _word(6)), _word(4)))
        parts.append(e.ir.select(early, e.ir.and_(first, _word(63)), late))
    return parts


def _nibbles_of_32(start: int, fifths: int | None) -> BlockReader:
    """Q4_K and Q5_K: nibbles from byte `start`, fifth bits from byte `fifths`."""

    def read(e: Emitter, block: Value, number: Value) -> Group:
        sixes = _six_bits(e, block, number)
        scale = _product(e, block, 0, sixes[0])
        offset = e.ir.fneg(_product(e, block, 2, sixes[1]))
        pair, shift = e.ir.lshr(number, e.const(1)), e.ir.mul(e.const(4), e.ir.and_(number, e.const(1)))
        quants = []
        for half in range(2):
            packed = _vector(e, block, _sum(e, start + LANES * half, (32, pair)))
            quant = _bits(e, packed, shift, 15)
            if fifths is not None:
                bits = _bits(e, _vector(e, block, e.const(fifths + LANES * half)), number, 1)
                quant = _raised(e, bits, 4, quant)
            quants.append(quant)
        return scale, offset, quants

    return BlockReader(32, read)


def _digits(e: Emitter, number: Value) -> tuple[Value, Value, Value]:
    """A group of 16 as (half of the block, quarter of that, half of that)."""
    quarter = e.ir.and_(e.ir.lshr(number, e.const(1)), e.const(3))
    return e.ir.lshr(number, e.const(3)), quarter, e.ir.and_(number, e.const(1))


def _pairs(e: Emitter, block: Value, start: int, number: Value) -> Value:
    """2-bit fields of one of 16 groups of 16: four of 32 columns share 32 bytes."""
    half, quarter, side = _digits(e, number)
    packed = _vector(e, block, _sum(e, start, (32, half), (LANES, side)))
    return _bits(e, packed, e.ir.mul(quarter, e.const(2)), 3)


def _read_q6_k(e: Emitter, block: Value, number: Value) -> Group:
    at = e.ir.add(number, e.const(192))
    scale = _product(e, block, 208, e.ir.sext(e.load(e.address(block, at, I8), I8), I32))
    half, quarter, side = _digits(e, number)
    place = _sum(e, 0, (64, half), (32, e.ir.and_(quarter, e.const(1))), (LANES, side))
    shift = e.ir.mul(e.const(4), e.ir.lshr(quarter, e.const(1)))
    low = _bits(e, _vector(e, block, place), shift, 15)
    return scale, _times(e, scale, -32.0), [_raised(e, _pairs(e, block, 128, number), 4, low)]


def _read_q2_k(e: Emitter, block: Value, number: Value) -> Group:
    both = _byte(e, block, number)
    scale = _product(e, block, 80, e.ir.and_(both, _word(15)))
    offset = e.ir.fneg(_product(e, block, 82, e.ir.lshr(both, _word(4))))
    return scale, offset, [_pairs(e, block, 16, number)]


def _field(e: Emitter, block: Value, at: int, number: Value, per: int, bits: int) -> Value:
    """Bits of one of 16 numbers, of which `per` bytes hold the next `bits` ones each."""
    within, step = e.ir.srem(number, e.const(per)), e.ir.sdiv(number, e.const(per))
    packed = _byte(e, block, e.ir.add(within, e.const(at)))
    shift = e.ir.trunc(e.ir.mul(step, e.const(bits)), I32)
    return e.ir.and_(e.ir.lshr(packed, shift), _word((1 << bits) - 1))


def _read_q3_k(e: Emitter, block: Value, number: Value) -> Group:
    low, high = _field(e, block, 96, number, 8, 4), _field(e, block, 104, number, 4, 2)
    signed = e.ir.sub(e.ir.or_(low, e.ir.shl(high, _word(4))), _word(32))
    scale = _product(e, block, 108, signed)
    side = e.ir.and_(number, e.const(1))
    masks = _vector(e, block, e.ir.mul(side, e.const(LANES)))
    thirds = _bits(e, masks, e.ir.lshr(number, e.const(1)), 1)
    return scale, _times(e, scale, -4.0), [_raised(e, thirds, 2, _pairs(e, block, 32, number))]


READERS: dict[GGMLType, BlockReader] = {
    GGMLType.Q4_0: _legacy(2, high=False, middle=8.0),
    GGMLType.Q4_1: _legacy(4, high=False, middle=None),
    GGMLType.Q5_0: _legacy(6, high=True, middle=16.0),
    GGMLType.Q5_1: _legacy(8, high=True, middle=None),
    GGMLType.Q8_0: BlockReader(32, _read_q8_0),
    GGMLType.Q2_K: BlockReader(16, _read_q2_k),
    GGMLType.Q3_K: BlockReader(16, _read_q3_k),
    GGMLType.Q4_K: _nibbles_of_32(16, None),
    GGMLType.Q5_K: _nibbles_of_32(48, 16),
    GGMLType.Q6_K: BlockReader(16, _read_q6_k),
}
"""The types whose values are affine in their quants."""
