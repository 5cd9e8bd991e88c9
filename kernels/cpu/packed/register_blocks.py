"""Products of packed weights with blocks of rows by tile registers (`kernels.cpu.tile_registers`).

A group's 8 quads are 8 rows of a register as they lie in memory, 64 bytes each; both planes of up to 8 rows'
activations are another's 16 rows, so that one product gives the sums of both. Sums are the whole numbers that
instructions on vectors give, and are scaled in the same order: a row's result is that of
`kernels.cpu.packed.products`, bit by bit.
"""

from kernels.cpu.activations import FACTORS, GROUP_BYTES
from kernels.cpu.compiler import CACHE_LINE, I8, INTS, LANES, VECTOR, Emitter, Value
from kernels.cpu.dots import GROUP, whole_sums
from kernels.cpu.packed.form import FORMS, QUADS, ask_ahead, read_quads
from kernels.cpu.packed.kinds import ProductKind
from kernels.cpu.packed.row_blocks import ABREAST, STRETCH, RowBlocks
from kernels.cpu.tile_registers import REGISTER_ROWS, TileRegisters

_PLANES, _HALVES = 2, 2
_HALF = REGISTER_ROWS // _PLANES
"""Rows whose activations one register holds."""
_QUANTS, _NUMBERS, _SUMS = (0, 4), (1, 5), ((2, 3), (6, 7))
"""Registers of two groups: of weights, of activations, and of the sums of each half of the rows. A product
waits for what is loaded and its store for the product, so two at a time share none."""
_REGISTER_BYTES = REGISTER_ROWS * CACHE_LINE


class RegisterBlocks(RowBlocks):
    """As its base, with up to 16 rows at a time, of types whose groups have one scale.

    Smaller groups would fill half of a register: vectors multiply them faster.
    """

    at_once = REGISTER_ROWS

    def __init__(
        self, e: Emitter, kind: ProductKind, blocks: Value, quants: Value, scales: Value, rows: Value
    ) -> None:
        """rows: whose activations lie between a group's and the next one's."""
        super().__init__(e, kind, blocks, quants, scales)
        columns = dict.fromkeys((*_QUANTS, *_SUMS[0], *_SUMS[1]), CACHE_LINE)
        columns |= dict.fromkeys(_NUMBERS, GROUP)
        self._registers = TileRegisters(e, columns, dict.fromkeys(_QUANTS, QUADS))
        self._as_packed = FORMS[kind.type].low_bits == 8
        """Quants are what is multiplied: nothing is to be decoded."""
        self._summed = e.bytes(STRETCH * _HALVES * _REGISTER_BYTES)
        self._group_step = e.ir.mul(rows, e.const(GROUP_BYTES))

    def end(self) -> None:
        """Behind the last tile."""
        self._registers.release()

    def _rows(self, row: Value, count: Value, groups: tuple[Value, Value], x: Value, factors: Value,
              sums: Value) -> None:  # fmt: skip
        e = self._e
        rows = e.smaller(e.ir.sub(count, row), e.const(self.at_once))
        # Of two halves both are whole: what lies behind the last row is multiplied for nothing.
        self._registers.set_rows(e.smaller(e.ir.mul(rows, e.const(_PLANES)), e.const(REGISTER_ROWS)))
        source = e.address(x, e.ir.mul(e.const(GROUP_BYTES), row), I8)
        with e.ir.if_else(e.ir.icmp_signed(">", rows, e.const(_HALF))) as (both, one):
            with both:
                self._multiply_all(groups, source, _HALVES)
            with one:
                self._multiply_all(groups, source, 1)
        last = e.ir.sub(count, e.const(1))
        with e.loop(e.const(0), rows, ABREAST) as first:
            self._scale(first, e.ir.add(row, first), last, groups, factors, sums)

    def _multiply_all(self, groups: tuple[Value, Value], source: Value, halves: int) -> None:
        e, final = self._e, self._e.ir.sub(groups[1], self._e.const(1))
        with e.loop(e.const(0), groups[1], 2) as group:
            both = group, e.smaller(e.ir.add(group, e.const(1)), final)
            if not self._as_packed:
                for one in both:
                    ask_ahead(e, FORMS[self._kind.type].group_bytes, self._packed(e.ir.add(groups[0], one)))
            self._multiply(both, groups[0], source, halves)

    def _multiply(self, groups: tuple[Value, Value], first: Value, source: Value, halves: int) -> None:
        """The sums of two groups, to their places; source: the first row's activations."""
        e, own, line = self._e, self._registers, self._e.const(CACHE_LINE)
        numbers = []
        for group, register in zip(groups, _QUANTS, strict=True):
            at = e.ir.add(first, group)
            own.load(register, self._packed(at) if self._as_packed else self._places(group)[0], line)
            numbers.append(e.address(source, e.ir.mul(at, self._group_step), I8))
        for half in range(halves):
            for place, register in zip(numbers, _NUMBERS, strict=True):
                at = e.address(place, e.const(_HALF * GROUP_BYTES * half), I8)
                own.load(register, at, e.const(GROUP_BYTES // _PLANES))
            for quants, register, sums in zip(_QUANTS, _NUMBERS, _SUMS, strict=True):
                own.zero(sums[half])
                own.add_products(sums[half], register, quants)
        for half in range(halves):
            for group, sums in zip(groups, _SUMS, strict=True):
                own.store(sums[half], self._place(group, half), line)

    def _keep_operands(self, group: Value, decoded: Value) -> None:
        if not self._as_packed:
            self._store(read_quads(self._e, self._kind.type, self._kind.dots, group), decoded)

    def _ask_beside(self, first: Value, group: Value) -> None:
        """Half of a group's lines beside the sums of each of the first two few rows.

        Registers are loaded from where quants lie packed: asked for there, all would wait for memory at once.
        """
        e, half = self._e, FORMS[self._kind.type].group_bytes // 2
        with e.ir.if_then(e.ir.icmp_signed("<", first, e.const(2 * ABREAST))):
            part = e.ir.mul(e.ir.sdiv(first, e.const(ABREAST)), e.const(half))
            ask_ahead(e, half, e.address(group, part, I8))

    def _packed(self, group: Value) -> Value:
        """Where the quants of a group lie, counted from the tile's first."""
        e = self._e
        at = e.ir.add(e.ir.mul(self._tile, self._groups), group)
        return e.address(self._quants, e.ir.mul(at, e.const(FORMS[self._kind.type].group_bytes)), I8)

    def _place(self, group: Value, half: int) -> Value:
        """Where sums of a decoded group lie: int32 [8 rows, 2 planes, 16]."""
        e = self._e
        at = e.ir.add(e.ir.mul(group, e.const(_HALVES)), e.const(half))
        return e.address(self._summed, e.ir.mul(at, e.const(_REGISTER_BYTES)), I8)

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
            line = e.address(self._place(group, 0), e.ir.mul(first, e.const(_PLANES * CACHE_LINE)), I8)
            if self._as_packed:
                self._ask_beside(first, self._packed(e.ir.add(groups[0], group)))
            for later, (of_row, total) in enumerate(zip(of_rows, totals, strict=True)):
                planes = (e.const(CACHE_LINE * (_PLANES * later + plane)) for plane in range(_PLANES))
                whole = whole_sums(e, *(e.load(e.address(line, at, I8), INTS) for at in planes))
                e.ir.store(self._scaled(group, 0, whole, of_row, e.ir.load(total, typ=VECTOR)), total)
        for total, place in zip(totals, places, strict=True):
            e.store(e.ir.load(total, typ=VECTOR), place)
