"""How packed weights lie in memory, and the code that reads them: quants, and scales of their groups.

A tile is 16 rows, which are the lanes of every vector. 32 columns of a tile are 8 quads, of 4 columns each:
64 bytes, 4 of each row. Their quants are planes of 1 to 8 bits: a plane of b bits takes b vectors of 64
bytes, and vector v has quad v + b · f in field f of its bytes. A file's blocks of a tile are records: their
float16 factors of 16 rows, then the whole numbers that scales are made of, a byte each of 16 rows.

Nothing is lost, and little is added: numbers of 6 bits take a byte.
"""

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from kernels.cpu.block_readers import READERS, half_power
from kernels.cpu.compiler import I8, INTS, LANES, VECTOR, Emitter, Value
from kernels.cpu.dots import GROUP, Dots, look_up
from kernels.quant.formats import FORMATS, GGMLType
from kernels.quant.nonlinear import E2M1_DOUBLED, IQ4

QUADS = GROUP // 4
VECTOR_BYTES = 4 * LANES
_HALVES = ir.VectorType(ir.HalfType(), LANES)
_AHEAD = 4096
"""Bytes of quants asked for ahead of their use: the hardware's own prefetch stops at pages."""

ReadNumbers = Callable[[int], Value]
"""Number counted from the group's own → int32 of 16 lanes, unsigned."""
Scales = Callable[[Emitter, list[Value], ReadNumbers], tuple[Value, Value]]
"""(emitter, factors as float32, numbers) → scale and offset of a group, of 16 lanes."""


@dataclass(frozen=True, slots=True)
class PackedForm:
    """How one type is packed."""

    low_bits: int
    high_bits: int
    """Bits of a quant in its two planes, the lower ones first."""
    numbers: int
    """Whole numbers of a block."""
    scales: Scales

    @property
    def group_bytes(self) -> int:
        """Quants of 32 columns."""
        return VECTOR_BYTES * (self.low_bits + self.high_bits)


@dataclass(frozen=True, slots=True)
class TypeSizes:
    """What follows from a type's block."""

    groups: int
    """Of 32 columns in a block."""
    sides: int
    """Parts of such a group that have scales of their own."""
    record_bytes: int
    """Of a block's factors and numbers in a tile."""


def sizes(type: GGMLType) -> TypeSizes:
    """Of a type in `FORMS`."""
    reader, form = READERS[type], FORMS[type]
    record = LANES * (2 * len(reader.halves) + form.numbers)
    return TypeSizes(FORMATS[type].elements // GROUP, GROUP // reader.group, record)


def packed_bytes(type: GGMLType, shape: tuple[int, int]) -> int:
    """Memory of a matrix, its rows padded to whole tiles."""
    rows, columns = -(-shape[0] // LANES) * LANES, shape[1]
    blocks = columns // FORMATS[type].elements
    own = sizes(type)
    tile = blocks * (own.groups * FORMS[type].group_bytes + own.record_bytes)
    return rows // LANES * tile


def ask_ahead(e: Emitter, size: int, place: Value) -> None:
    """Have the memory bring what is read soon after the `size` bytes of quants at an address."""
    for line in range(_AHEAD, _AHEAD + size, VECTOR_BYTES):
        e.prefetch(e.address(place, e.const(line), I8))


def read_quads(e: Emitter, type: GGMLType, dots: Dots, group: Value) -> list[Value]:
    """The quants of 32 columns of a tile: 8 quads, int32 of 16 lanes, from the group's address."""
    form = FORMS[type]
    low = _plane(e, group, 0, form.low_bits, 0)
    if form.high_bits:
        high = _plane(e, group, VECTOR_BYTES * form.low_bits, form.high_bits, form.low_bits)
        low = [e.ir.or_(one, other) for one, other in zip(low, high, strict=True)]
    table = READERS[type].table
    if not table:
        return low
    entries = tuple(entry - min(table) for entry in table)
    return [look_up(e, dots, entries, places) for places in low]


def value_of(e: Emitter, quad: Value, column: int, scale: Value, offset: Value) -> Value:
    """Values of one of a quad's four columns, float32 of 16 lanes."""
    return e.fma(e.ir.sitofp(_byte(e, quad, column), VECTOR), scale, offset)


def _byte(e: Emitter, quad: Value, number: int) -> Value:
    return e.ir.and_(e.ir.lshr(quad, _ints(8 * number)), _ints(0xFF))


def _plane(e: Emitter, group: Value, start: int, bits: int, raise_to: int) -> list[Value]:
    """A plane's fields, each at bit `raise_to` of its byte."""
    vectors = [
        e.ir.load(e.address(group, e.const(start + VECTOR_BYTES * v), I8), typ=INTS, align=VECTOR_BYTES)
        for v in range(bits)
    ]
    if bits == 8:
        return vectors
    mask = ir.Constant(INTS, [((1 << bits) - 1 << raise_to) * 0x01010101] * LANES)
    made = []
    for quad in range(QUADS):
        shift, value = bits * (quad // bits) - raise_to, vectors[quad % bits]
        amount = ir.Constant(INTS, [abs(shift)] * LANES)
        if shift:
            value = e.ir.lshr(value, amount) if shift > 0 else e.ir.shl(value, amount)
        made.append(e.ir.and_(value, mask))
    return made


def pack_quads(e: Emitter, type: GGMLType, quads: list[Value], group: Value) -> None:
    """Write 8 quads to a group's address: what `read_quads` reads, before any table."""
    form = FORMS[type]
    start, dropped = 0, 0
    for bits in (form.low_bits, form.high_bits):
        mask = ir.Constant(INTS, [((1 << bits) - 1) * 0x01010101] * LANES)
        for v in range(bits):
            total: Value = ir.Constant(INTS, [0] * LANES)
            for field in range(8 // bits):
                value = e.ir.lshr(quads[v + bits * field], ir.Constant(INTS, [dropped] * LANES))
                placed = e.ir.shl(e.ir.and_(value, mask), ir.Constant(INTS, [bits * field] * LANES))
                total = e.ir.or_(total, placed)
            e.store(total, e.address(group, e.const(start + VECTOR_BYTES * v), I8))
        start, dropped = start + VECTOR_BYTES * bits, dropped + bits


class Record:
    """The scales of one block of a tile."""

    def __init__(self, e: Emitter, type: GGMLType, record: Value) -> None:
        self._e, self._type, halves = e, type, len(READERS[type].halves)
        self._numbers = e.address(record, e.const(2 * LANES * halves), I8)
        self._factors = [
            e.ir.fpext(e.load(e.address(record, e.const(2 * LANES * n), I8), _HALVES), VECTOR)
            for n in range(halves)
        ]

    def scales(self, index: Value) -> tuple[Value, Value]:
        """Scale and offset, float32 of 16 lanes, of a group as the type has them; index int64."""
        e = self._e

        def number(later: int) -> Value:
            at = e.ir.mul(e.ir.add(index, e.const(later)), e.const(LANES))
            return e.ir.zext(e.load(e.address(self._numbers, at, I8), ir.VectorType(I8, LANES)), INTS)

        return FORMS[self._type].scales(e, self._factors, number)


def _ints(value: int) -> Value:
    return ir.Constant(INTS, [value] * LANES)


def _from_middle(e: Emitter, scale: Value, middle: float) -> tuple[Value, Value]:
    return scale, e.ir.fmul(scale, e.vector(-middle))


def _factor(middle: float) -> Scales:
    return lambda e, factors, _numbers: _from_middle(e, factors[0], middle)


def _both_factors(_e: Emitter, factors: list[Value], _numbers: ReadNumbers) -> tuple[Value, Value]:
    return factors[0], factors[1]


def _six_bits(e: Emitter, factors: list[Value], numbers: ReadNumbers) -> tuple[Value, Value]:
    scale, offset = (e.ir.sitofp(numbers(later), VECTOR) for later in (0, 8))
    return e.ir.fmul(scale, factors[0]), e.ir.fmul(offset, e.ir.fneg(factors[1]))


def _four_bits(e: Emitter, factors: list[Value], numbers: ReadNumbers) -> tuple[Value, Value]:
    both = numbers(0)
    scale, offset = (
        e.ir.sitofp(part, VECTOR) for part in (e.ir.and_(both, _ints(15)), e.ir.lshr(both, _ints(4)))
    )
    return e.ir.fmul(scale, factors[0]), e.ir.fmul(offset, e.ir.fneg(factors[1]))


def _signed(middle: float) -> Scales:
    def scales(e: Emitter, factors: list[Value], numbers: ReadNumbers) -> tuple[Value, Value]:
        signed = e.ir.ashr(e.ir.shl(numbers(0), _ints(24)), _ints(24))
        return _from_middle(e, e.ir.fmul(e.ir.sitofp(signed, VECTOR), factors[0]), middle)

    return scales


def _powers(e: Emitter, _factors: list[Value], numbers: ReadNumbers) -> tuple[Value, Value]:
    return _from_middle(e, half_power(e, numbers(0)), -float(min(E2M1_DOUBLED)))


_LEAST_IQ4 = -float(min(IQ4))

FORMS: dict[GGMLType, PackedForm] = {
    GGMLType.Q4_0: PackedForm(4, 0, 0, _factor(8.0)),
    GGMLType.Q4_1: PackedForm(4, 0, 0, _both_factors),
    GGMLType.Q5_0: PackedForm(4, 1, 0, _factor(16.0)),
    GGMLType.Q5_1: PackedForm(4, 1, 0, _both_factors),
    GGMLType.Q8_0: PackedForm(8, 0, 0, _factor(128.0)),
    GGMLType.Q2_K: PackedForm(2, 0, 16, _four_bits),
    GGMLType.Q3_K: PackedForm(2, 1, 16, _signed(4.0)),
    GGMLType.Q4_K: PackedForm(4, 0, 16, _six_bits),
    GGMLType.Q5_K: PackedForm(4, 1, 16, _six_bits),
    GGMLType.Q6_K: PackedForm(4, 2, 16, _signed(32.0)),
    GGMLType.IQ4_NL: PackedForm(4, 0, 0, _factor(_LEAST_IQ4)),
    GGMLType.IQ4_XS: PackedForm(4, 0, 8, _signed(_LEAST_IQ4)),
    GGMLType.MXFP4: PackedForm(4, 0, 1, _powers),
}
