"""Products of packed weights with blocks of rows by tile registers (`kernels.cpu.tile_registers`).

A group's 8 quads are 8 rows of a register as they lie in memory, 64 bytes each; up to 16 rows' activations
are two others, one for each of their planes. Sums are the whole numbers that instructions on vectors give,
and are scaled in the same order: a row's result is that of `kernels.cpu.packed.products`, bit by bit.
"""

from kernels.cpu.activations import FACTORS, GROUP_BYTES
from kernels.cpu.compiler import CACHE_LINE, I8, INTS, LANES, VECTOR, Emitter, Value
from kernels.cpu.dots import GROUP, whole_sums
from kernels.cpu.packed.form import QUADS
from kernels.cpu.packed.kinds import ProductKind
from kernels.cpu.packed.row_blocks import ABREAST, STRETCH, RowBlocks
from kernels.cpu.tile_registers import REGISTER_ROWS, TileRegisters

_PLANES = 2
_QUANTS, _NUMBERS, _SUMS = 0, (1, 2), (3, 4)
"""Registers: of weights, and for each plane one of activations and one of sums."""
_REGISTER_BYTES = REGISTER_ROWS * CACHE_LINE


class RegisterBlocks(RowBlocks):
    """As its base, with up to 16 rows at a time."""

    at_once = REGISTER_ROWS

    def __init__(self, e: Emitter, kind: ProductKind, blocks: Value, quants: Value, scales: Value) -> None:
        super().__init__(e, kind, blocks, quants, scales)
        self._quads = QUADS // self._sizes.sides
        """Of columns that share a scale."""
        columns = dict.fromkeys((_QUANTS, *_SUMS), CACHE_LINE) | dict.fromkeys(_NUMBERS, 4 * self._quads)
        self._registers = TileRegisters(e, columns, {_QUANTS: self._quads})
        self._side_bytes = _PLANES * _REGISTER_BYTES
        self._summed = e.bytes(STRETCH * self._sizes.sides * self._side_bytes)
        self._row_bytes = e.ir.mul(self._groups, e.const(GROUP_BYTES))

    def end(self) -> None:
        """Behind the last tile."""
        self._registers.release()

    def _rows(self, row: Value, count: Value, groups: tuple[Value, Value], x: Value, factors: Value,
              sums: Value) -> None:  # fmt: skip
        e = self._e
        rows = e.smaller(e.ir.sub(count, row), e.const(self.at_once))
        self._registers.set_rows(rows)
        source = e.address(x, e.ir.mul(self._row_bytes, row), I8)
        with e.loop(e.const(0), groups[1]) as group:
            self._multiply(
                group, e.address(source, e.ir.mul(e.ir.add(groups[0], group), e.const(GROUP_BYTES)), I8)
            )
        last = e.ir.sub(count, e.const(1))
        with e.loop(e.const(0), rows, ABREAST) as first:
            self._scale(first, e.ir.add(row, first), last, groups, factors, sums)

    def _multiply(self, group: Value, source: Value) -> None:
        """The sums of a group, to their place; source: the first row's activations."""
        e, own = self._e, self._registers
        decoded, _ = self._places(group)
        line = e.const(CACHE_LINE)
        for side in range(self._sizes.sides):
            first = side * self._quads
            own.load(_QUANTS, e.address(decoded, e.const(CACHE_LINE * first), I8), line)
            for plane, (numbers, total) in enumerate(zip(_NUMBERS, _SUMS, strict=True)):
                own.zero(total)
                own.load(numbers, e.address(source, e.const(GROUP * plane + 4 * first), I8), self._row_bytes)
                own.add_products(total, numbers, _QUANTS)
            for plane, total in enumerate(_SUMS):
                own.store(
                    total, e.address(self._place(group, side), e.const(_REGISTER_BYTES * plane), I8), line
                )

    def _place(self, group: Value, side: int) -> Value:
        """Where sums of a group lie: int32 [planes, 16 rows, 16]."""
        e = self._e
        at = e.ir.add(e.ir.mul(group, e.const(self._sizes.sides)), e.const(side))
        return e.address(self._summed, e.ir.mul(at, e.const(self._side_bytes)), I8)

    def _scale(self, first: Value, row: Value, last: Value, groups: tuple[Value, Value], factors: Value,
               sums: Value) -> None:  # fmt: skip
        """Add a few rows' scaled sums of all groups; first: of them in the registers, row: of all."""
        e = self._e
        of_rows, places, totals = [], [], []
        for later in range(ABREAST):
            place = e.ir.add(row, e.const(later))
            at = e.ir.add(e.ir.mul(self._groups, e.smaller(place, last)), groups[0])
            of_rows.append(e.address(factors, e.ir.mul(at, e.const(FACTORS))))
            # Rows that stand for missing ones have sums of their own.
            places.append(e.address(sums, e.ir.mul(place, e.const(LANES))))
            totals.append(e.variable(e.load(places[-1])))
        with e.loop(e.const(0), groups[1]) as group:
            for side in range(self._sizes.sides):
                self._scale_side(group, side, first, of_rows, totals)
        for total, place in zip(totals, places, strict=True):
            e.store(e.ir.load(total, typ=VECTOR), place)

    def _scale_side(self, group: Value, side: int, first: Value, factors: list[Value],
                    totals: list[Value]) -> None:  # fmt: skip
        e = self._e
        lines = e.address(self._place(group, side), e.ir.mul(first, e.const(CACHE_LINE)), I8)
        for later, (of_row, total) in enumerate(zip(factors, totals, strict=True)):
            planes = [
                e.load(e.address(lines, e.const(CACHE_LINE * later + _REGISTER_BYTES * plane), I8), INTS)
                for plane in range(_PLANES)
            ]
            value = self._scaled(group, side, whole_sums(e, *planes), of_row, e.ir.load(total, typ=VECTOR))
            e.ir.store(value, total)
