"""Products of packed weights with blocks of rows, where registers are few and narrow.

A stretch of a tile's columns is decoded once, into memory that stays in the first cache, and multiplied with
a few rows at a time, whose sums stay in registers. A row's result is that of `kernels.cpu.packed.products`,
bit by bit.
"""

from kernels.cpu.activations import FACTORS, GROUP_BYTES
from kernels.cpu.compiler import CACHE_LINE, F32, I8, I32, INTS, LANES, VECTOR, Emitter, Value
from kernels.cpu.dots import GROUP, QuadSums, operands
from kernels.cpu.packed.form import FORMS, QUADS, Record, ask_ahead, read_quads, sizes, value_of
from kernels.cpu.packed.kinds import ProductKind

ABREAST = 4
"""Rows whose sums stay in registers: of 16 registers of 256 bits 8, beside weights and activations."""
STRETCH = 8
"""Groups that are decoded at a time."""
_RECORDS_AHEAD = 4
"""Blocks whose scales are asked for before they are read, where a block has many."""
_COLUMNS = 4
"""Of float32 activations, in one turn of a loop."""


class RowBlocks:
    """Writes the product of one tile with any number of rows, whose sums it keeps in memory."""

    at_once = ABREAST
    """Rows that meet what is decoded in one turn."""

    def __init__(self, e: Emitter, kind: ProductKind, blocks: Value, quants: Value, scales: Value) -> None:
        self._e, self._kind, self._blocks = e, kind, blocks
        self._quants, self._scales, self._sizes = quants, scales, sizes(kind.type)
        self._exact = kind.precision == "float"
        self._operands = 1 if kind.dots.by_bytes else 2
        """Of a quad."""
        self._groups = e.ir.mul(blocks, e.const(self._sizes.groups))
        self._decoded_bytes = CACHE_LINE * (GROUP if self._exact else QUADS * self._operands)
        self._decoded = e.bytes(STRETCH * self._decoded_bytes)
        self._factor_bytes = CACHE_LINE * 2 * self._sizes.sides
        self._factors = e.bytes(STRETCH * self._factor_bytes)
        self._tile: Value = e.const(0)

    def add(self, tile: Value, count: Value, x: Value, factors: Value, sums: Value) -> None:
        """Add to sums, float32 [count, 16], which has room for `ABREAST` more rows.

        x, factors: of the first row.
        """
        e, own, self._tile = self._e, self._sizes, tile
        step = max(1, STRETCH // own.groups)
        with e.loop(e.const(0), self._blocks, step) as block:
            end = e.smaller(e.ir.add(block, e.const(step)), self._blocks)
            with e.loop(block, end) as one:
                self._decode(tile, one, e.ir.mul(e.ir.sub(one, block), e.const(own.groups)))
            first, after = (e.ir.mul(number, e.const(own.groups)) for number in (block, end))
            with e.loop(e.const(0), count, self.at_once) as row:
                self._rows(row, count, (first, e.ir.sub(after, first)), x, factors, sums)

    def end(self) -> None:
        """Behind the last tile."""

    def _decode(self, tile: Value, block: Value, number: Value) -> None:
        """One block, to the places of groups from `number` on."""
        e, own, kind = self._e, self._sizes, self._kind
        at = e.ir.add(e.ir.mul(tile, self._blocks), block)
        own_record = e.address(self._scales, e.ir.mul(at, e.const(own.record_bytes)), I8)
        record = Record(e, kind.type, own_record)
        if own.groups > 1:
            for line in range(0, own.record_bytes, CACHE_LINE):
                e.prefetch(e.address(own_record, e.const(_RECORDS_AHEAD * own.record_bytes + line), I8))
        first = e.ir.mul(at, e.const(own.groups))
        with e.loop(e.const(0), e.const(own.groups)) as within:
            at = e.ir.mul(e.ir.add(first, within), e.const(FORMS[kind.type].group_bytes))
            place = e.address(self._quants, at, I8)
            sides = [
                record.scales(e.ir.add(e.ir.mul(within, e.const(own.sides)), e.const(side)))
                for side in range(own.sides)
            ]
            decoded, kept = self._places(e.ir.add(number, within))
            if self._exact:
                self._keep_values(place, sides, decoded)
            else:
                self._keep_operands(place, decoded)
                self._store([factor for side in sides for factor in side], kept)

    def _keep_values(self, group: Value, sides: list[tuple[Value, Value]], decoded: Value) -> None:
        e, kind = self._e, self._kind
        ask_ahead(e, FORMS[kind.type].group_bytes, group)
        for place, quad in enumerate(read_quads(e, kind.type, kind.dots, group)):
            scales = sides[place * len(sides) // QUADS]
            values = [value_of(e, quad, column, *scales) for column in range(4)]
            self._store(values, e.address(decoded, e.const(4 * CACHE_LINE * place), I8))

    def _keep_operands(self, group: Value, decoded: Value) -> None:
        e, kind = self._e, self._kind
        ask_ahead(e, FORMS[kind.type].group_bytes, group)
        quads = read_quads(e, kind.type, kind.dots, group)
        self._store([part for quad in quads for part in operands(e, kind.dots, quad)], decoded)

    def _places(self, group: Value) -> tuple[Value, Value]:
        """Where what is decoded of a group lies, and the scales and offsets of its sides."""
        e = self._e
        decoded = e.address(self._decoded, e.ir.mul(group, e.const(self._decoded_bytes)), I8)
        return decoded, e.address(self._factors, e.ir.mul(group, e.const(self._factor_bytes)), I8)

    def _store(self, vectors: list[Value], place: Value) -> None:
        for number, vector in enumerate(vectors):
            self._e.store(vector, self._e.address(place, self._e.const(CACHE_LINE * number), I8))

    def _rows(self, row: Value, count: Value, groups: tuple[Value, Value], x: Value, factors: Value,
              sums: Value) -> None:  # fmt: skip
        """From `row` on, with what is decoded; groups: the first of it in its row, and how many."""
        e, last = self._e, self._e.ir.sub(count, self._e.const(1))
        of_group = 4 * GROUP if self._exact else GROUP_BYTES
        sources, of_rows, totals = [], [], []
        for later in range(ABREAST):
            place = e.ir.add(row, e.const(later))
            at = e.ir.add(e.ir.mul(self._groups, e.smaller(place, last)), groups[0])
            sources.append(e.address(x, e.ir.mul(at, e.const(of_group)), I8))
            of_rows.append(e.address(factors, e.ir.mul(at, e.const(FACTORS))))
            # Rows that stand for missing ones have sums of their own: each is added to once.
            totals.append(e.address(sums, e.ir.mul(place, e.const(LANES))))
        if self._exact:
            self._floats(groups[1], sources, totals)
            return
        with e.loop(e.const(0), groups[1]) as group:
            for side in range(self._sizes.sides):
                self._side(group, side, sources, of_rows, totals)

    def _side(self, group: Value, side: int, sources: list[Value], factors: list[Value],
              totals: list[Value]) -> None:  # fmt: skip
        """Columns of a group that share a scale."""
        e, count = self._e, QUADS // self._sizes.sides
        decoded, _ = self._places(group)
        places = [e.address(source, e.ir.mul(group, e.const(GROUP_BYTES)), I8) for source in sources]
        own = [QuadSums(e, self._kind.dots) for _ in sources]
        first, end = (self._operands * count * number for number in (side, side + 1))
        with e.loop(e.const(first), e.opaque(end), self._operands) as quad:
            for part in range(self._operands):
                number = e.ir.add(quad, e.const(part))
                at = e.address(decoded, e.ir.mul(number, e.const(CACHE_LINE)), I8)
                vector = e.ir.load(at, typ=INTS, align=CACHE_LINE)
                for place, numbers in zip(places, own, strict=True):
                    numbers.add(vector, e.address(place, number, I32))
        for total, numbers, of_row in zip(totals, own, factors, strict=True):
            e.store(self._scaled(group, side, numbers.whole(), of_row, e.load(total)), total)

    def _scaled(self, group: Value, side: int, whole: Value, factors: Value, total: Value) -> Value:
        """A row's total with the sums of a group's side; factors: of the row's first decoded group."""
        e = self._e
        _, kept = self._places(group)
        scale, offset = (e.load(e.address(kept, e.const(LANES * (2 * side + n)))) for n in range(2))
        summed = 3 if self._sizes.sides == 1 else 1 + side
        of_group = e.address(factors, e.ir.mul(group, e.const(FACTORS)))
        factor, added = (e.splat(e.load(e.address(of_group, e.const(n)), F32)) for n in (0, summed))
        value = e.fma(e.ir.fmul(e.ir.sitofp(whole, VECTOR), factor), scale, total)
        return e.fma(offset, added, value)

    def _floats(self, groups: Value, sources: list[Value], totals: list[Value]) -> None:
        e = self._e
        kept = [e.variable(e.load(total)) for total in totals]
        with e.loop(e.const(0), e.ir.mul(groups, e.const(GROUP)), _COLUMNS) as start:
            for later in range(_COLUMNS):
                column = e.ir.add(start, e.const(later))
                weight = e.load(e.address(self._decoded, e.ir.mul(column, e.const(LANES))))
                for source, total in zip(sources, kept, strict=True):
                    x = e.splat(e.load(e.address(source, column), F32))
                    e.ir.store(e.fma(weight, x, e.ir.load(total, typ=VECTOR)), total)
        for total, place in zip(kept, totals, strict=True):
            e.store(e.ir.load(total, typ=VECTOR), place)
