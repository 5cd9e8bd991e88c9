"""Values of packed weights: slices of a matrix for the vendor's product, and single rows."""

from collections.abc import Iterator

import torch
from llvmlite import ir
from torch import Tensor

from kernels.cpu.compiler import (
    F32,
    I8,
    I16,
    I64,
    LANES,
    Emitter,
    Value,
    compiled,
    shared_out,
)
from kernels.cpu.dots import GROUP, Dots, host_dots
from kernels.cpu.packed.form import FORMS, QUADS, Record, ask_ahead, read_quads, sizes, value_of
from kernels.cpu.packed.tiles import PackedMatrix
from kernels.cpu.team import threads_for
from kernels.quant.formats import GGMLType

SLICE_BYTES = 1 << 20
"""Of the values of a slice: they stay in the second cache until they are multiplied."""
_BUNDLE = 4
"""Tiles whose values of a group are written one after another, so that cache lines are filled."""


def slices_of(
    matrix: PackedMatrix, dtype: torch.dtype, first: int = 0, tiles: int | None = None
) -> Iterator[tuple[int, Tensor]]:
    """(first row, values [columns, rows] of `dtype`) of slices one after another, in the same memory.

    Of `tiles` tiles from `first` on, whose first row is then 0; all without them.
    """
    tiles = matrix.tiles - first if tiles is None else tiles
    rows = min(tiles * LANES, matrix.rows - first * LANES)
    step = max(1, SLICE_BYTES // (matrix.columns * LANES * dtype.itemsize * _BUNDLE)) * _BUNDLE
    scratch = torch.empty(min(step, tiles) * LANES * matrix.columns, dtype=dtype)
    for start in range(0, tiles, step):
        count = min(step, tiles - start)
        values = scratch[: count * LANES * matrix.columns].view(matrix.columns, count * LANES)
        values_kernel(matrix.type, dtype, host_dots())(
            *shared_out(-(-count // _BUNDLE)), count, matrix.blocks, count * LANES,
            matrix.quants[first + start].data_ptr(), matrix.scales[first + start].data_ptr(),
            values.data_ptr(),
        )  # fmt: skip
        yield start * LANES, values[:, : rows - start * LANES]


def rows_of(matrix: PackedMatrix, ids: Tensor) -> Tensor:
    """Some rows, float32 [n, columns]; ids int64 [n]."""
    out = torch.empty(len(ids), matrix.columns)
    ids = ids.contiguous()
    rows_kernel(matrix.type, host_dots())(
        threads_for(len(ids)), len(ids), 1, matrix.blocks, matrix.columns, ids.data_ptr(),
        matrix.quants.data_ptr(), matrix.scales.data_ptr(), out.data_ptr(),
    )  # fmt: skip
    return out


class TileGroups:
    """The 16 rows' values of 32 columns of a tile, one column after another."""

    def __init__(self, e: Emitter, type: GGMLType, dots: Dots, blocks: Value) -> None:
        self._e, self._type, self._dots, self._sizes = e, type, dots, sizes(type)
        self._quant_bytes = e.ir.mul(blocks, e.const(self._sizes.groups * FORMS[type].group_bytes))
        self._scale_bytes = e.ir.mul(blocks, e.const(self._sizes.record_bytes))
        self.groups = e.ir.mul(blocks, e.const(self._sizes.groups))

    def values(self, quants: Value, scales: Value, tile: Value, group: Value) -> Iterator[tuple[int, Value]]:
        """(column, float32 of 16 lanes) of a group of the matrix whose quants and scales begin there."""
        e, own = self._e, self._sizes
        block, within = (part(group, e.const(own.groups)) for part in (e.ir.sdiv, e.ir.srem))
        at = e.ir.add(e.ir.mul(tile, self._scale_bytes), e.ir.mul(block, e.const(own.record_bytes)))
        record = Record(e, self._type, e.address(scales, at, I8))
        at = e.ir.mul(group, e.const(FORMS[self._type].group_bytes))
        at = e.ir.add(e.ir.mul(tile, self._quant_bytes), at)
        place = e.address(quants, at, I8)
        ask_ahead(e, self._type, place)
        quads = read_quads(e, self._type, self._dots, place)
        for side in range(own.sides):
            scale, offset = record.scales(e.ir.add(e.ir.mul(within, e.const(own.sides)), e.const(side)))
            count = QUADS // own.sides
            for quad in range(side * count, (side + 1) * count):
                for column in range(4):
                    yield 4 * quad + column, value_of(e, quads[quad], column, scale, offset)


@compiled
def values_kernel(type: GGMLType, dtype: torch.dtype, dots: Dots) -> ir.Module:
    """One thread takes bundles of tiles: values [columns, rows], float32 or rounded to bfloat16."""
    e = Emitter(f"values_{type.name}_{str(dtype).removeprefix('torch.')}")
    bundles, chunk, tiles, blocks, rows = (e.parameter(index) for index in range(1, 6))
    quants, scales, out = (e.pointer(index) for index in range(6, 9))
    own, narrow = TileGroups(e, type, dots, blocks), dtype is torch.bfloat16
    with e.pieces(bundles, chunk) as bundle:
        start = e.ir.mul(bundle, e.const(_BUNDLE))
        end = e.smaller(e.ir.add(start, e.const(_BUNDLE)), tiles)
        with e.loop(e.const(0), own.groups) as group, e.loop(start, end) as tile:
            first = e.ir.mul(e.ir.mul(group, e.const(GROUP)), rows)
            first = e.ir.add(first, e.ir.mul(tile, e.const(LANES)))
            for column, value in own.values(quants, scales, tile, group):
                at = e.ir.add(first, e.ir.mul(e.const(column), rows))
                place = e.address(out, at, I16 if narrow else F32)
                e.store(e.to_bfloat16(value) if narrow else value, place)
    return e.finish()


@compiled
def rows_kernel(type: GGMLType, dots: Dots) -> ir.Module:
    """One thread takes rows: of each value's 16 rows the one that is asked for."""
    e = Emitter(f"rows_{type.name}")
    count, chunk, blocks, columns = (e.parameter(index) for index in range(1, 5))
    ids, quants, scales, out = (e.pointer(index) for index in range(5, 9))
    own = TileGroups(e, type, dots, blocks)
    with e.pieces(count, chunk) as number:
        row = e.load(e.address(ids, number, I64), I64)
        tile, lane = e.ir.sdiv(row, e.const(LANES)), e.ir.srem(row, e.const(LANES))
        line = e.address(out, e.ir.mul(number, columns))
        with e.loop(e.const(0), own.groups) as group:
            first = e.ir.mul(group, e.const(GROUP))
            for column, value in own.values(quants, scales, tile, group):
                at = e.ir.add(first, e.const(column))
                e.store(e.ir.extract_element(value, lane), e.address(line, at))
    return e.finish()
