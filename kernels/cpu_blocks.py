"""A file's quantised blocks read by compiled code: codes, and the scale and offset of each group.

Every value of these types is code · scale + offset with one rounding: scales are products of few bits,
exact in float32, and so are their products with a code. What is read here is the file's own.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from llvmlite import ir

from kernels.cpu_compiler import F32, I8, I32, INTS, LANES, Emitter, Value
from kernels.quant.formats import GGMLType

BYTES = ir.VectorType(I8, LANES)

Reader = Callable[[Emitter, Value, int], tuple[Value, Value, list[Value]]]
"""(emitter, address of a block, group) → (scale, offset, codes: one vector per 16 columns)."""


@dataclass(frozen=True, slots=True)
class BlockReader:
    """How the groups of one type's blocks are read."""

    group: int
    """Columns that share a scale: 16 or 32."""
    read: Reader

    def groups(self, e: Emitter, block: Value, elements: int) -> Iterator[tuple[Value, Value, list[Value]]]:
        """Every group of a block, in the order of its columns."""
        for number in range(elements // self.group):
            yield self.read(e, block, number)


def _half(e: Emitter, block: Value, at: int) -> Value:
    place = e.address(block, e.const(at), I8)
    return e.ir.fpext(e.ir.load(place, typ=ir.HalfType(), align=1), F32)


def _byte(e: Emitter, block: Value, at: int) -> Value:
    """An unsigned byte as int32."""
    return e.ir.zext(e.load(e.address(block, e.const(at), I8), I8), I32)


def _vector(e: Emitter, block: Value, at: int) -> Value:
    return e.load(e.address(block, e.const(at), I8), BYTES)


def _all(value: int, kind: ir.VectorType = BYTES) -> Value:
    return ir.Constant(kind, [value] * LANES)


def _bits(e: Emitter, packed: Value, shift: int, mask: int) -> Value:
    """(byte >> shift) & mask in every lane."""
    return e.ir.and_(e.ir.lshr(packed, _all(shift)), _all(mask))


def _raised(e: Emitter, bits: Value, shift: int, low: Value) -> Value:
    return e.ir.or_(low, e.ir.shl(bits, _all(shift)))


def _word(value: int) -> Value:
    return ir.Constant(I32, value)


def _number(e: Emitter, value: Value) -> Value:
    return e.ir.sitofp(value, F32)


def _times(e: Emitter, scale: Value, factor: float) -> Value:
    return e.ir.fmul(scale, ir.Constant(F32, factor))


def _legacy(start: int, high: bool, middle: float | None) -> Reader:
    """16-bit scale, then a 16-bit offset unless codes count from `middle`; nibbles from byte `start`."""

    def read(e: Emitter, block: Value, _group: int) -> tuple[Value, Value, list[Value]]:
        scale = _half(e, block, 0)
        offset = _half(e, block, 2) if middle is None else _times(e, scale, -middle)
        packed = _vector(e, block, start)
        codes = [_bits(e, packed, 0, 15), _bits(e, packed, 4, 15)]
        if high:
            word = e.ir.load(e.address(block, e.const(start - 4), I8), typ=I32, align=1)
            fifths = e.ir.insert_element(ir.Constant(INTS, ir.Undefined), word, _word(0))
            fifths = e.shuffle(fifths, [0] * LANES)
            for half in range(2):
                places = ir.Constant(INTS, [LANES * half + lane for lane in range(LANES)])
                bits = e.ir.and_(e.ir.trunc(e.ir.lshr(fifths, places), BYTES), _all(1))
                codes[half] = _raised(e, bits, 4, codes[half])
        return scale, offset, codes

    return read


def _read_q8_0(e: Emitter, block: Value, _group: int) -> tuple[Value, Value, list[Value]]:
    scale = _half(e, block, 0)
    codes = [e.ir.xor(_vector(e, block, 2 + LANES * half), _all(128)) for half in range(2)]
    return scale, _times(e, scale, -128.0), codes


def _six_bit(e: Emitter, block: Value, group: int) -> tuple[Value, Value]:
    """Scale and minimum of one of 8 groups, from the 12 bytes that begin at byte 4."""
    if group < 4:
        scale, minimum = _byte(e, block, 4 + group), _byte(e, block, 8 + group)
        return tuple(e.ir.and_(part, _word(63)) for part in (scale, minimum))
    both = _byte(e, block, 8 + group)
    tops = [e.ir.lshr(_byte(e, block, at + group), _word(6)) for at in (0, 4)]
    lows = [e.ir.and_(both, _word(15)), e.ir.lshr(both, _word(4))]
    scale, minimum = (e.ir.or_(low, e.ir.shl(top, _word(4))) for low, top in zip(lows, tops, strict=True))
    return scale, minimum


def _nibbles_of_32(start: int, fifths: int | None) -> Reader:
    """Q4_K and Q5_K: nibbles from byte `start`, fifth bits from byte `fifths`."""

    def read(e: Emitter, block: Value, group: int) -> tuple[Value, Value, list[Value]]:
        sixes = [_number(e, part) for part in _six_bit(e, block, group)]
        scale = e.ir.fmul(_half(e, block, 0), sixes[0])
        offset = e.ir.fneg(e.ir.fmul(_half(e, block, 2), sixes[1]))
        codes = []
        for half in range(2):
            at = start + 32 * (group // 2) + LANES * half
            code = _bits(e, _vector(e, block, at), 4 * (group % 2), 15)
            if fifths is not None:
                bits = _bits(e, _vector(e, block, fifths + LANES * half), group, 1)
                code = _raised(e, bits, 4, code)
            codes.append(code)
        return scale, offset, codes

    return read


def _pairs(e: Emitter, block: Value, start: int, group: int) -> Value:
    """2-bit fields of one of 16 groups of 16: four of 32 columns share 32 bytes."""
    packed = _vector(e, block, start + 32 * (group // 8) + LANES * (group % 2))
    return _bits(e, packed, 2 * (group % 8 // 2), 3)


def _read_q6_k(e: Emitter, block: Value, group: int) -> tuple[Value, Value, list[Value]]:
    signed = e.ir.sext(e.load(e.address(block, e.const(192 + group), I8), I8), I32)
    scale = e.ir.fmul(_half(e, block, 208), _number(e, signed))
    at = 64 * (group // 8) + LANES * (group % 4)
    low = _bits(e, _vector(e, block, at), 4 * (group % 8 // 4), 15)
    return scale, _times(e, scale, -32.0), [_raised(e, _pairs(e, block, 128, group), 4, low)]


def _read_q2_k(e: Emitter, block: Value, group: int) -> tuple[Value, Value, list[Value]]:
    both = _byte(e, block, group)
    scale = e.ir.fmul(_half(e, block, 80), _number(e, e.ir.and_(both, _word(15))))
    offset = e.ir.fneg(e.ir.fmul(_half(e, block, 82), _number(e, e.ir.lshr(both, _word(4)))))
    return scale, offset, [_pairs(e, block, 16, group)]


def _read_q3_k(e: Emitter, block: Value, group: int) -> tuple[Value, Value, list[Value]]:
    low = e.ir.and_(e.ir.lshr(_byte(e, block, 96 + group % 8), _word(4 * (group // 8))), _word(15))
    high = e.ir.and_(e.ir.lshr(_byte(e, block, 104 + group % 4), _word(2 * (group // 4))), _word(3))
    signed = e.ir.sub(e.ir.or_(low, e.ir.shl(high, _word(4))), _word(32))
    scale = e.ir.fmul(_half(e, block, 108), _number(e, signed))
    thirds = _bits(e, _vector(e, block, LANES * (group % 2)), group // 2, 1)
    return scale, _times(e, scale, -4.0), [_raised(e, thirds, 2, _pairs(e, block, 32, group))]


READERS: dict[GGMLType, BlockReader] = {
    GGMLType.Q4_0: BlockReader(32, _legacy(2, high=False, middle=8.0)),
    GGMLType.Q4_1: BlockReader(32, _legacy(4, high=False, middle=None)),
    GGMLType.Q5_0: BlockReader(32, _legacy(6, high=True, middle=16.0)),
    GGMLType.Q5_1: BlockReader(32, _legacy(8, high=True, middle=None)),
    GGMLType.Q8_0: BlockReader(32, _read_q8_0),
    GGMLType.Q2_K: BlockReader(16, _read_q2_k),
    GGMLType.Q3_K: BlockReader(16, _read_q3_k),
    GGMLType.Q4_K: BlockReader(32, _nibbles_of_32(16, None)),
    GGMLType.Q5_K: BlockReader(32, _nibbles_of_32(48, 16)),
    GGMLType.Q6_K: BlockReader(16, _read_q6_k),
}
"""The types whose values are affine in their codes."""
