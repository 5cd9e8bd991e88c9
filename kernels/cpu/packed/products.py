"""Products of few rows with packed weights, as they lie in memory: y = x · Wᵀ.

One thread takes tiles of 16 rows of W, which are the lanes. With activations of 15 bits sums over a group's
columns are whole numbers, exact, and are scaled once; float32 activations multiply each value of W instead.
A row's result is the same whatever rows come with it.
"""

from llvmlite import ir
from torch import Tensor

from kernels.contract import Activation
from kernels.cpu.activations import FACTORS, GROUP_BYTES, Activations
from kernels.cpu.compiler import (
    CACHE_LINE,
    F32,
    I8,
    I64,
    LANES,
    VECTOR,
    Emitter,
    Kernel,
    Value,
    compiled,
    shared_out,
    wide_registers,
)
from kernels.cpu.dots import GROUP, QuadProducts
from kernels.cpu.gate import open_gate
from kernels.cpu.packed.form import FORMS, QUADS, Record, ask_ahead, read_quads, sizes, value_of
from kernels.cpu.packed.kinds import ProductKind, product_kind
from kernels.cpu.packed.register_blocks import RegisterBlocks
from kernels.cpu.packed.row_blocks import ABREAST, RowBlocks
from kernels.cpu.packed.tiles import PackedMatrix
from kernels.cpu.tile_registers import has_tile_registers

MOST_ROWS = 8 if wide_registers() else 2
"""Rows whose sums stay in registers, beside the quants of a group."""
MORE_IN_BLOCKS = not wide_registers()
"""Whether more rows than that are multiplied with what is decoded to memory before (`row_blocks`)."""
LEAST_IN_REGISTERS = 5
"""Rows from which on tile registers multiply faster than vectors do."""

_TOGETHER = 64
"""Rows whose activations a tile meets before the next tile: they stay in the second cache."""


class PackedProduct:
    """A packed matrix that is multiplied, what is added, and what the sums go through."""

    def __init__(
        self, matrix: PackedMatrix, bias: Tensor | None, gate: Activation | None, exact: bool
    ) -> None:
        """bias: float32 [rows], padded to whole tiles; exact: activations stay float32."""
        self.kind = product_kind(matrix.type, gate, exact)
        self._held = matrix, bias
        self._blocks = matrix.blocks
        self._tiles = matrix.tiles // (1 if gate is None else 2)
        self.width = LANES * self._tiles
        """Columns of its results, those of a tile's padding included."""
        self._addresses = (
            matrix.quants.data_ptr(),
            matrix.scales.data_ptr(),
            0 if bias is None else bias.data_ptr(),
        )

    def __call__(self, x: Activations, out: int, stride: int) -> None:
        """Write the results of all rows from address `out` on, a row every `stride` float32.

        There must be room for whole tiles.
        """
        for start in range(0, x.rows, _TOGETHER):
            count = min(_TOGETHER, x.rows - start)
            by_groups = count >= LEAST_IN_REGISTERS and _fits_registers(self.kind)
            numbers, factors = x.addresses(by_groups)
            self._kernel(count, by_groups)(
                *shared_out(self._tiles), count, self._blocks, stride, *self._addresses,
                numbers + start * (GROUP_BYTES if by_groups else x.row_bytes),
                factors + start * x.row_factors, out + 4 * start * stride, x.rows,
            )  # fmt: skip

    def _kernel(self, rows: int, in_registers: bool) -> Kernel:
        if in_registers or (MORE_IN_BLOCKS and rows > MOST_ROWS):
            return row_block_kernel(self.kind, in_registers)
        return product_kernel(self.kind, min(MOST_ROWS, 1 << (rows - 1).bit_length()))


def _fits_registers(kind: ProductKind) -> bool:
    whole = kind.precision == "whole" and kind.dots.by_bytes
    return whole and sizes(kind.type).sides == 1 and has_tile_registers()


def compile_products(kind: ProductKind) -> None:
    """Have the kernels of a matrix before the first pass."""
    rows = 1
    while rows <= MOST_ROWS:
        product_kernel(kind, rows)
        rows *= 2
    if _fits_registers(kind):
        row_block_kernel(kind, True)
    elif MORE_IN_BLOCKS:
        row_block_kernel(kind, False)


@compiled
def product_kernel(kind: ProductKind, rows: int) -> ir.Module:
    """`rows` at a time for as many as there are; fewer than that repeat the last one."""
    e = Emitter(f"product_{rows}")
    tiles, chunk, count, blocks, stride = (e.parameter(index) for index in range(1, 6))
    quants, scales, bias, x, factors, y = (e.pointer(index) for index in range(6, 12))
    last = e.ir.sub(count, e.const(1))
    product = TileProduct(e, kind, blocks, quants, scales)
    kept = e.bytes(2 * rows * CACHE_LINE)
    with e.pieces(tiles, chunk) as tile, e.loop(e.const(0), count, rows) as start:
        numbers = [e.smaller(e.ir.add(start, e.const(row)), last) for row in range(rows)]
        sources = product.rows(x, factors, numbers)
        if kind.gate is None:
            totals = product.totals(tile, sources, bias)
        else:
            with e.loop(e.const(0), e.const(2)) as part:
                own = e.ir.add(tile, e.ir.mul(part, tiles))
                place = e.address(kept, e.ir.mul(part, e.const(rows * CACHE_LINE)), I8)
                for number, total in enumerate(product.totals(own, sources, bias)):
                    e.store(total, e.address(place, e.const(LANES * number)))
            halves = [
                [e.load(e.address(kept, e.const(LANES * (row + part * rows)))) for part in range(2)]
                for row in range(rows)
            ]
            totals = [open_gate(e, kind.gate, *both) for both in halves]
        for number, total in zip(numbers, totals, strict=True):
            at = e.ir.add(e.ir.mul(stride, number), e.ir.mul(tile, e.const(LANES)))
            e.store(total, e.address(y, at))
    return e.finish()


@compiled
def row_block_kernel(kind: ProductKind, in_registers: bool) -> ir.Module:
    """All of up to `_TOGETHER` rows; parameters as `product_kernel`'s.

    in_registers: those of tiles, and activations by groups, of so many rows as one more parameter says.
    """
    e = Emitter("row_blocks")
    tiles, chunk, count, blocks, stride = (e.parameter(index) for index in range(1, 6))
    quants, scales, bias, x, factors, y = (e.pointer(index) for index in range(6, 12))
    product = RowBlocks(e, kind, blocks, quants, scales)
    if in_registers:
        product = RegisterBlocks(e, kind, blocks, quants, scales, e.parameter(12))
    parts, room = 1 if kind.gate is None else 2, (_TOGETHER + ABREAST) * LANES
    sums = e.bytes(4 * parts * room)
    with e.pieces(tiles, chunk) as tile:
        with e.loop(e.const(0), e.const(parts)) as part:
            own = e.ir.add(tile, e.ir.mul(part, tiles))
            place, added = e.address(sums, e.ir.mul(part, e.const(room))), e.variable(e.vector(0.0))
            with e.ir.if_then(e.ir.icmp_signed("!=", e.ir.ptrtoint(bias, I64), e.const(0))):
                e.ir.store(e.load(e.address(bias, e.ir.mul(own, e.const(LANES)))), added)
            with e.loop(e.const(0), count) as row:
                e.store(e.ir.load(added, typ=VECTOR), e.address(place, e.ir.mul(row, e.const(LANES))))
            product.add(own, count, x, factors, place)
        with e.loop(e.const(0), count) as row:
            at = e.address(sums, e.ir.mul(row, e.const(LANES)))
            halves = [e.load(e.address(at, e.const(room * part))) for part in range(parts)]
            total = halves[0] if kind.gate is None else open_gate(e, kind.gate, *halves)
            to = e.ir.add(e.ir.mul(stride, row), e.ir.mul(tile, e.const(LANES)))
            e.store(total, e.address(y, to))
    product.end()
    return e.finish()


Source = tuple[Value, Value]
"""Where one row's activations begin, and their factors."""


class TileProduct:
    """Writes the product of one tile with some rows."""

    def __init__(self, e: Emitter, kind: ProductKind, blocks: Value, quants: Value, scales: Value) -> None:
        self._e, self._kind, self._blocks = e, kind, blocks
        self._quants, self._scales, self._sizes = quants, scales, sizes(kind.type)
        self._group_bytes = FORMS[kind.type].group_bytes
        self._groups = e.ir.mul(blocks, e.const(self._sizes.groups))

    def rows(self, x: Value, factors: Value, numbers: list[Value]) -> list[Source]:
        """Of rows by their numbers, int64."""
        e, exact = self._e, self._kind.precision == "float"
        of_group = 4 * GROUP if exact else GROUP_BYTES
        made = []
        for number in numbers:
            first = e.ir.mul(self._groups, number)
            source = e.address(x, e.ir.mul(first, e.const(of_group)), I8)
            made.append((source, e.address(factors, e.ir.mul(first, e.const(FACTORS)))))
        return made

    def totals(self, tile: Value, sources: list[Source], bias: Value | None) -> list[Value]:
        """float32 of 16 lanes for every row; bias: an address that may be 0."""
        e, own = self._e, self._sizes
        sums = [e.variable(e.vector(0.0)) for _ in sources]
        if bias is not None:
            with e.ir.if_then(e.ir.icmp_signed("!=", e.ir.ptrtoint(bias, I64), e.const(0))):
                added = e.load(e.address(bias, e.ir.mul(tile, e.const(LANES))))
                for total in sums:
                    e.ir.store(added, total)
        first, first_group = e.ir.mul(tile, self._blocks), e.ir.mul(tile, self._groups)
        with e.loop(e.const(0), self._blocks) as block:
            at = e.ir.mul(e.ir.add(first, block), e.const(own.record_bytes))
            record = Record(e, self._kind.type, e.address(self._scales, at, I8))
            with e.loop(e.const(0), e.const(own.groups)) as within:
                group = e.ir.add(e.ir.mul(block, e.const(own.groups)), within)
                at = e.ir.mul(e.ir.add(first_group, group), e.const(self._group_bytes))
                place = e.address(self._quants, at, I8)
                ask_ahead(e, self._group_bytes, place)
                quads = read_quads(e, self._kind.type, self._kind.dots, place)
                for side in range(own.sides):
                    index = e.ir.add(e.ir.mul(within, e.const(own.sides)), e.const(side))
                    self._side(quads, side, record.scales(index), group, sources, sums)
        return [e.ir.load(total, typ=VECTOR) for total in sums]

    def _side(self, quads: list[Value], side: int, scales: tuple[Value, Value], group: Value,
              sources: list[Source], sums: list[Value]) -> None:  # fmt: skip
        """Add the columns of a group that share a scale."""
        count = QUADS // self._sizes.sides
        first = side * count
        own = quads[first : first + count]
        if self._kind.precision == "float":
            self._floats(own, first, scales, group, sources, sums)
            return
        e, (scale, offset) = self._e, scales
        products = QuadProducts(e, self._kind.dots, own, first)
        summed = 3 if self._sizes.sides == 1 else 1 + side
        for (source, factors), total in zip(sources, sums, strict=True):
            place = e.address(source, e.ir.mul(group, e.const(GROUP_BYTES)), I8)
            whole = e.ir.sitofp(products.sum(place), VECTOR)
            of_group = e.address(factors, e.ir.mul(group, e.const(FACTORS)))
            factor, added = (e.splat(e.load(e.address(of_group, e.const(n)), F32)) for n in (0, summed))
            value = e.fma(e.ir.fmul(whole, factor), scale, e.ir.load(total, typ=VECTOR))
            e.ir.store(e.fma(offset, added, value), total)

    def _floats(self, quads: list[Value], first: int, scales: tuple[Value, Value], group: Value,
                sources: list[Source], sums: list[Value]) -> None:  # fmt: skip
        e = self._e
        for number, quad in enumerate(quads, first):
            for column in range(4):
                weight = value_of(e, quad, column, *scales)
                for (source, _), total in zip(sources, sums, strict=True):
                    at = e.ir.add(e.ir.mul(group, e.const(GROUP)), e.const(4 * number + column))
                    x = e.splat(e.load(e.address(source, at), F32))
                    e.ir.store(e.fma(weight, x, e.ir.load(total, typ=VECTOR)), total)
