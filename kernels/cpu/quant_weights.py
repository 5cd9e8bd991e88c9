"""Weights as 8-bit quants with float32 scales and offsets, in tiles for `kernels.cpu.quant_linear`.

Layout: `quants` uint8 [out/32, in, 32], `scales` and `offsets` float32 [out/32, in/group, 32], so that a
vector's lanes are rows of the weight. A gated layer's tile holds 16 gate rows and the 16 up rows of the
same outputs.

Quants, scales and offsets are those of the file's blocks: nothing is lost. Types that are not affine in
their quants have no such form.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from llvmlite import ir
from torch import Tensor

from kernels.contract import QuantizedMatrix
from kernels.cpu.block_readers import BYTES, READERS, BlockScales
from kernels.cpu.compiler import I8, I16, I32, I64, LANES, VECTOR, Emitter, Value, compiled, threads_for
from kernels.quant.formats import FORMATS, GGMLType

TILE = 2 * LANES
"""Rows of a weight that one tile holds."""


@dataclass(slots=True)
class QuantLinear:
    """A weight [out_features, in_features] as quants."""

    out_features: int
    in_features: int
    group: int
    gated: bool
    quants: Tensor
    scales: Tensor
    offsets: Tensor
    bias: Tensor
    """float32 [out], in the order of the tiles."""

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self.quants.nbytes + self.scales.nbytes + self.offsets.nbytes


def make_quant_linear(
    parts: Sequence[QuantizedMatrix], bias: Tensor | None, gated: bool, dense: Tensor | None = None
) -> QuantLinear | None:
    """From matrices stacked by rows; None where a type is not affine or a shape does not fit tiles.

    dense: float32 or bfloat16 [rows, in], which gets the weight's values too, those of `dequantize`; its
    contents are undefined where None is returned. None is also returned for scales that are not finite.
    """
    columns = parts[0].shape[1]
    rows = sum(part.shape[0] for part in parts)
    unfit = any(part.shape[0] % TILE or part.type not in READERS for part in parts)
    if unfit or columns % 32:
        return None
    group = min(READERS[part.type].group for part in parts)
    quants = torch.empty(rows // TILE, columns, TILE, dtype=torch.uint8)
    scales, offsets = (torch.empty(rows // TILE, columns // group, TILE) for _ in range(2))
    added = torch.zeros(rows) if bias is None else bias
    if gated:
        added = added.view(2, -1, LANES).transpose(0, 1).reshape(rows)
    made = QuantLinear(rows, columns, group, gated, quants, scales, offsets, added)
    row = 0
    for number, part in enumerate(parts):
        values = None if dense is None else dense[row : row + part.shape[0]]
        _unpack(part, made, (0, LANES * number) if gated else (row, 0), values)
        row += part.shape[0]
    return made if _finite(scales) and _finite(offsets) else None


def _finite(values: Tensor) -> bool:
    """Whether all are: one pass over them, since NaN is both the least and the most where there is one."""
    return all(bool(end.isfinite()) for end in torch.aminmax(values))


def _unpack(part: QuantizedMatrix, made: QuantLinear, place: tuple[int, int], dense: Tensor | None) -> None:
    """Write a part to its `place`, (first row, first lane), and its values to `dense`."""
    rows, columns = part.shape
    order = torch.arange(rows) if part.row_order is None else part.row_order.contiguous()
    width = LANES if made.gated else TILE
    first_row, first_lane = place
    raw = part.raw
    unpack_kernel(part.type, None if dense is None else dense.dtype)(
        threads_for(rows // width), rows, width, columns // FORMATS[part.type].elements, made.group,
        first_row, width, first_lane, raw.data_ptr(), order.data_ptr(), made.quants.data_ptr(),
        made.scales.data_ptr(), made.offsets.data_ptr(), 0 if dense is None else dense.data_ptr(),
    )  # fmt: skip


@compiled
def unpack_kernel(type: GGMLType, dense_dtype: torch.dtype | None) -> ir.Module:
    """One thread takes rows: every block's quants and scales to their lane, its values to `dense`."""
    e = Emitter(f"unpack_{type.name}_{str(dense_dtype).removeprefix('torch.')}")
    rows, chunk, blocks, group, first_row, width, first_lane = (e.parameter(index) for index in range(1, 8))
    raw, order, quants, scales, offsets, dense = (e.pointer(index) for index in range(8, 14))
    elements, reader = FORMATS[type].elements, READERS[type]
    columns = e.ir.mul(blocks, e.const(elements))
    groups = e.ir.sdiv(columns, group)
    cells = e.ir.sdiv(e.const(reader.group), group)
    numbers, block_scales = e.bytes(elements), BlockScales(e, type)
    with e.pieces(rows, chunk) as row:
        target = e.ir.add(row, first_row)
        tile, lane = e.ir.sdiv(target, width), e.ir.add(first_lane, e.ir.srem(target, width))
        source = e.load(e.address(order, row, I64), I64)
        with e.loop(e.const(0), blocks) as number:
            at = e.ir.mul(e.ir.add(e.ir.mul(source, blocks), number), e.const(FORMATS[type].nbytes))
            column = e.ir.mul(number, e.const(elements))
            line = e.ir.add(e.ir.mul(row, columns), column)
            start = e.ir.add(e.ir.mul(tile, groups), e.ir.sdiv(column, group))
            block = e.address(raw, at, I8)
            block_scales.begin(block)
            with e.loop(e.const(0), e.const(elements // reader.group)) as index:
                scale, offset = block_scales.of(index)
                cell = e.ir.add(start, e.ir.mul(cells, index))
                for twin in (cell, e.ir.sub(e.ir.add(cell, cells), e.const(1))):
                    place = e.ir.add(e.ir.mul(twin, e.const(TILE)), lane)
                    for part, base in ((scale, scales), (offset, offsets)):
                        e.store(e.ir.extract_element(part, ir.Constant(I32, 0)), e.address(base, place))
                for half, vector in enumerate(reader.quants(e, block, index)):
                    within = e.ir.add(e.ir.mul(index, e.const(reader.group)), e.const(LANES * half))
                    e.store(e.ir.trunc(vector, BYTES), e.address(numbers, within, I8))
                    if dense_dtype is not None:
                        values = e.fma(e.ir.sitofp(vector, VECTOR), scale, offset)
                        _write(e, values, dense, e.ir.add(line, within), dense_dtype)
            first = e.ir.add(e.ir.mul(tile, columns), column)
            with e.loop(e.const(0), e.const(elements)) as index:
                quant = e.load(e.address(numbers, index, I8), I8)
                cell = e.ir.add(e.ir.mul(e.ir.add(first, index), e.const(TILE)), lane)
                e.store(quant, e.address(quants, cell, I8))
    return e.finish()


def _write(e: Emitter, values: Value, dense: Value, at: Value, dtype: torch.dtype) -> None:
    if dtype is torch.bfloat16:
        e.store(e.to_bfloat16(values), e.address(dense, at, I16))
    else:
        e.store(values, e.address(dense, at))
