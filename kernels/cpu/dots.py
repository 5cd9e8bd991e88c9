"""Products of quants, which are unsigned bytes, with activations of 15 bits, summed as whole numbers.

Activations of 32 columns are q · s with |q| ≤ 16,256. Where a processor multiplies bytes four at a time, q
is 128 · high + low of two bytes; elsewhere it is one word of 16 bits. Sums are exact in int32 either way.
"""

from enum import StrEnum
from functools import cache

from llvmlite import binding, ir

from kernels.cpu.compiler import I8, I16, I32, INTS, LANES, VECTOR, Emitter, Value

GROUP = 32
"""Columns whose activations share a scale."""
LARGEST = 127 * 128
_LOW_BITS = 7

_QUAD_ORDER = (0, 2, 1, 3)
"""Of the four words of a quad: even columns lie in one half of what is multiplied, odd ones in the other."""
_EVEN = 0x00FF00FF


class Dots(StrEnum):
    """What multiplies."""

    BYTES_512 = "bytes of 512 bits"
    """AVX512-VNNI."""
    BYTES_256 = "bytes of 256 bits"
    """AVX-VNNI."""
    WORDS_512 = "words of 512 bits"
    """AVX512-BW."""
    WORDS_256 = "words of 256 bits"
    """AVX2."""
    PLAIN = "plain"
    """What LLVM makes of it."""

    @property
    def by_bytes(self) -> bool:
        """Whether activations are two planes of bytes."""
        return self in (Dots.BYTES_512, Dots.BYTES_256)

    @property
    def lanes(self) -> int:
        """Sums of one instruction."""
        return 8 if self in (Dots.BYTES_256, Dots.WORDS_256) else LANES


_NEEDS = {
    Dots.BYTES_512: ("avx512vnni", "avx512bw"),
    Dots.BYTES_256: ("avxvnni",),
    Dots.WORDS_512: ("avx512bw",),
    Dots.WORDS_256: ("avx2",),
    Dots.PLAIN: (),
}


@cache
def usable_dots() -> list[Dots]:
    """Those that this processor has, the fastest first."""
    has = binding.get_host_cpu_features()
    return [dots for dots, needs in _NEEDS.items() if all(has.get(need) for need in needs)]


def host_dots() -> Dots:
    """The fastest of this processor."""
    return usable_dots()[0]


def store_activations(e: Emitter, dots: Dots, half: int, numbers: Value, place: Value) -> None:
    """Write 16 columns, one half of a group, of q as int32 to where the group's 64 bytes begin."""
    if dots.by_bytes:
        rounding, bits = (ir.Constant(INTS, [value] * LANES) for value in (1 << (_LOW_BITS - 1), _LOW_BITS))
        high = e.ir.ashr(e.ir.add(numbers, rounding), bits)
        low = e.ir.sub(numbers, e.ir.shl(high, bits))
        for plane, part in enumerate((high, low)):
            at = e.const(GROUP * plane + LANES * half)
            e.store(e.ir.trunc(part, ir.VectorType(I8, LANES)), e.address(place, at, I8))
        return
    words = e.ir.trunc(numbers, ir.VectorType(I16, LANES))
    ordered = e.shuffle(words, [4 * (lane // 4) + _QUAD_ORDER[lane % 4] for lane in range(LANES)])
    e.store(ordered, e.address(place, e.const(2 * LANES * half), I8))


def operands(e: Emitter, dots: Dots, quad: Value) -> list[Value]:
    """What is multiplied of a quad: its bytes, or its even columns and its odd ones as words."""
    if dots.by_bytes:
        return [quad]
    even = ir.Constant(INTS, [_EVEN] * LANES)
    return [e.ir.and_(quad, even), e.ir.and_(e.ir.lshr(quad, ir.Constant(INTS, [8] * LANES)), even)]


class _Products:
    """Steps of sums of products."""

    def __init__(self, e: Emitter, dots: Dots) -> None:
        self._e, self._dots = e, dots

    def _of_bytes(self, total: Value, quad: Value, activations: Value, at: int) -> Value:
        name = f"llvm.x86.avx512.vpdpbusd.{32 * self._dots.lanes}"
        return self._by_instruction(name, [total, quad, self._spread(activations, at)])

    def _of_words(self, total: Value, words: Value, activations: Value, at: int) -> Value:
        e = self._e
        if self._dots is Dots.PLAIN:
            for upper in range(2):
                place = e.address(activations, e.const(at + 2 * upper), I8)
                x = e.spread(e.ir.sext(e.load(place, I16), I32))
                shift, low = (ir.Constant(INTS, [value] * LANES) for value in (16 * upper, 0xFF))
                quants = e.ir.and_(e.ir.lshr(words, shift), low)
                total = e.ir.add(total, e.ir.mul(quants, x))
            return total
        name = "llvm.x86.avx512.pmaddw.d.512" if self._dots is Dots.WORDS_512 else "llvm.x86.avx2.pmadd.wd"
        kind = ir.VectorType(I16, 2 * self._dots.lanes)
        return e.ir.add(total, self._by_instruction(name, [words, self._spread(activations, at)], kind))

    def _spread(self, activations: Value, at: int) -> Value:
        place = self._e.address(activations, self._e.const(at), I8)
        return self._e.spread(self._e.ir.load(place, typ=I32, align=2))

    def _by_instruction(self, name: str, operands: list[Value], kind: ir.Type | None = None) -> Value:
        """On as many lanes at a time as the instruction has; kind: what the operands are to it."""
        e, lanes = self._e, self._dots.lanes
        result = ir.VectorType(I32, lanes)
        operand = result if kind is None else kind
        function = e.module.globals.get(name)
        if function is None:
            function = ir.Function(e.module, ir.FunctionType(result, [operand] * len(operands)), name)
        parts = []
        for start in range(0, LANES, lanes):
            cut = [
                part if lanes == LANES else e.shuffle(part, list(range(start, start + lanes)))
                for part in operands
            ]
            given = cut if kind is None else [e.ir.bitcast(part, kind) for part in cut]
            parts.append(e.ir.call(function, given))
        if len(parts) == 1:
            return parts[0]
        order = ir.Constant(ir.VectorType(I32, LANES), list(range(LANES)))
        return e.ir.shuffle_vector(parts[0], parts[1], order)


class QuadProducts(_Products):
    """Sums over some quads of a group: 16 rows of W of 4 columns each, as 64 bytes."""

    def __init__(self, e: Emitter, dots: Dots, quads: list[Value], first: int) -> None:
        """first: number of the first quad in its group."""
        super().__init__(e, dots)
        self._first = first
        self._operands = [operands(e, dots, quad) for quad in quads]

    def sum(self, activations: Value) -> Value:
        """Σ quant · q, int32 of 16 lanes, with the group whose 64 bytes are at `activations`."""
        zero = ir.Constant(INTS, [0] * LANES)
        if self._dots.by_bytes:
            # Two sums, since an addition waits for the one before.
            high, low = (self._bytes(zero, activations, plane) for plane in (0, GROUP))
            return whole_sums(self._e, high, low)
        total = zero
        for number, words in enumerate(self._operands, self._first):
            for half, part in enumerate(words):
                total = self._of_words(total, part, activations, 8 * number + 4 * half)
        return total

    def _bytes(self, total: Value, activations: Value, plane: int) -> Value:
        for number, (quad,) in enumerate(self._operands, self._first):
            total = self._of_bytes(total, quad, activations, plane + 4 * number)
        return total


class QuadSums(_Products):
    """Σ quant · q of one row, as operands go by that others multiply too."""

    def __init__(self, e: Emitter, dots: Dots) -> None:
        super().__init__(e, dots)
        zero = ir.Constant(INTS, [0] * LANES)
        self._totals = [e.variable(zero) for _ in range(2 if dots.by_bytes else 1)]

    def add(self, operand: Value, activations: Value) -> None:
        """activations: of the group, its operand's number times 4 bytes later."""
        for plane, total in enumerate(self._totals):
            before = self._e.ir.load(total, typ=INTS)
            if self._dots.by_bytes:
                after = self._of_bytes(before, operand, activations, GROUP * plane)
            else:
                after = self._of_words(before, operand, activations, 0)
            self._e.ir.store(after, total)

    def whole(self) -> Value:
        """int32 of 16 lanes."""
        totals = [self._e.ir.load(total, typ=INTS) for total in self._totals]
        if not self._dots.by_bytes:
            return totals[0]
        return whole_sums(self._e, *totals)


def whole_sums(e: Emitter, high: Value, low: Value) -> Value:
    """Of the sums of both planes, int32 of 16 lanes."""
    return e.ir.add(e.ir.shl(high, ir.Constant(INTS, [_LOW_BITS] * LANES)), low)


def look_up(e: Emitter, dots: Dots, table: tuple[int, ...], places: Value) -> Value:
    """Entries of a table of 16 bytes for 64 places, as int32 of 16 lanes each."""
    lanes = 4 * dots.lanes
    kind, name = ir.VectorType(I8, lanes), "llvm.x86.avx512.pshuf.b.512"
    if dots in (Dots.BYTES_256, Dots.WORDS_256):
        name = "llvm.x86.avx2.pshuf.b"
    if dots is Dots.PLAIN:
        return _look_up_plainly(e, table, places)
    function = e.module.globals.get(name) or ir.Function(e.module, ir.FunctionType(kind, [kind, kind]), name)
    entries = ir.Constant(kind, list(table) * (lanes // len(table)))
    parts = []
    for start in range(0, LANES, dots.lanes):
        cut = places if dots.lanes == LANES else e.shuffle(places, list(range(start, start + dots.lanes)))
        found = e.ir.call(function, [entries, e.ir.bitcast(cut, kind)])
        parts.append(e.ir.bitcast(found, ir.VectorType(I32, dots.lanes)))
    if len(parts) == 1:
        return parts[0]
    return e.ir.shuffle_vector(parts[0], parts[1], ir.Constant(ir.VectorType(I32, LANES), list(range(LANES))))


def _look_up_plainly(e: Emitter, table: tuple[int, ...], places: Value) -> Value:
    """By each bit of a place one choice between halves of what is left."""
    kind = ir.VectorType(I8, 4 * LANES)
    at = e.ir.bitcast(places, kind)
    left: list[Value] = [ir.Constant(kind, [entry] * 4 * LANES) for entry in table]
    for bit in range(4):
        odd = e.ir.and_(at, ir.Constant(kind, [1 << bit] * 4 * LANES))
        chosen = e.ir.icmp_unsigned("!=", odd, ir.Constant(kind, [0] * 4 * LANES))
        left = [e.ir.select(chosen, left[n + 1], left[n]) for n in range(0, len(left), 2)]
    return e.ir.bitcast(left[0], INTS)


def as_floats(e: Emitter, numbers: Value) -> Value:
    """int32 of 16 lanes as float32."""
    return e.ir.sitofp(numbers, VECTOR)
