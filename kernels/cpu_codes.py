"""Weights as 8-bit codes with float32 scales and offsets, in tiles for `kernels.cpu_coded_linear`.

Layout: `codes` uint8 [out/32, in, 32], `scales` and `offsets` float32 [out/32, in/group, 32], so that a
vector's lanes are rows of the weight. A gated layer's tile holds 16 gate rows and the 16 up rows of the
same outputs.

Scale and offset are fitted to the values of each group, so one way serves every type whose values are
affine in their codes; a type that is not, or not to float32's rounding, is not coded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from llvmlite import ir
from torch import Tensor

from kernels.cpu_compiler import F32, I8, INTS, LANES, VECTOR, Emitter, Kernel, Value, threads_for
from kernels.ops import QuantizedMatrix
from kernels.quant.dequant import dequantize
from kernels.quant.formats import FORMATS, GGMLType
from kernels.quant.planes_blocks import BLOCKS

TILE = 2 * LANES
"""Rows of a weight that one tile holds."""

_CODABLE = frozenset(BLOCKS) - {GGMLType.IQ4_NL, GGMLType.IQ4_XS, GGMLType.MXFP4}
_SIXTEENS = frozenset({GGMLType.Q2_K, GGMLType.Q3_K, GGMLType.Q6_K})
"""Types with a scale for every 16 columns; the others have one for every 32."""

_SLAB = 1 << 20
"""Elements coded at once."""

_FIT_ERROR = 1e-6


@dataclass(slots=True)
class CodedLinear:
    """A weight [out_features, in_features] as codes."""

    out_features: int
    in_features: int
    group: int
    gated: bool
    codes: Tensor
    scales: Tensor
    offsets: Tensor
    bias: Tensor
    """float32 [out], in the order of the tiles."""

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self.codes.nbytes + self.scales.nbytes + self.offsets.nbytes


def coded_bytes(type: GGMLType, shape: tuple[int, int]) -> int:
    """Memory of a matrix as codes."""
    if type not in _CODABLE:
        return 0
    return shape[0] * shape[1] * (6 if type in _SIXTEENS else 5) // 4


def make_coded(parts: Sequence[QuantizedMatrix], bias: Tensor | None, gated: bool) -> CodedLinear | None:
    """From matrices stacked by rows; None where a type is not affine or a shape does not fit tiles."""
    columns = parts[0].shape[1]
    rows = sum(part.shape[0] for part in parts)
    unfit = any(part.shape[0] % TILE or part.type not in _CODABLE for part in parts)
    if unfit or columns % 32:
        return None
    group = 16 if any(part.type in _SIXTEENS for part in parts) else 32
    codes = torch.empty(rows // TILE, columns, TILE, dtype=torch.uint8)
    scales, offsets = (torch.empty(rows // TILE, columns // group, TILE) for _ in range(2))
    added = torch.zeros(rows) if bias is None else bias
    if gated:
        added = added.view(2, -1, LANES).transpose(0, 1).reshape(rows)
    coded = CodedLinear(rows, columns, group, gated, codes, scales, offsets, added)
    row = 0
    for number, part in enumerate(parts):
        first_lane, row = (LANES * number, 0) if gated else (0, row)
        if not _code(part, coded, row, first_lane):
            return None
        row += part.shape[0]
    return coded


def _code(part: QuantizedMatrix, coded: CodedLinear, row: int, first_lane: int) -> bool:
    """Write a part's rows from `row` on; False where its values are not affine in its codes."""
    rows, columns = part.shape
    width = LANES if coded.gated else TILE
    lines = part.raw.view(rows, -1)
    step = max(TILE, _SLAB // columns // TILE * TILE)
    misfits = torch.zeros(1)
    for start in range(0, rows, step):
        chosen = slice(start, start + step)
        raw = lines[chosen if part.row_order is None else part.row_order[chosen]]
        numbers = BLOCKS[part.type].split(raw.reshape(-1, FORMATS[part.type].nbytes))[0].contiguous()
        count = raw.shape[0]
        values = dequantize(raw.reshape(-1), part.type, (count, columns))
        _fit_kernel(coded.group)(
            threads_for(count // width), count, width, columns, row + start, width, first_lane,
            numbers.data_ptr(), values.data_ptr(), coded.codes.data_ptr(), coded.scales.data_ptr(),
            coded.offsets.data_ptr(), misfits.data_ptr(),
        )  # fmt: skip
    return not bool(misfits.any())


@cache
def _fit_kernel(group: int) -> Kernel:
    """One thread takes rows: least squares per group, codes spread to their lane of the tile."""
    e = Emitter(f"fit_{group}")
    rows, chunk, columns, first_row, width, first_lane = (e.parameter(index) for index in range(1, 7))
    numbers, values, codes, scales, offsets, misfits = (e.pointer(index) for index in range(7, 13))
    groups = e.ir.sdiv(columns, e.const(group))
    with e.pieces(rows, chunk) as row:
        target = e.ir.add(row, first_row)
        tile, lane = e.ir.sdiv(target, width), e.ir.add(first_lane, e.ir.srem(target, width))
        start = e.ir.mul(row, columns)
        with e.loop(e.const(0), groups) as number:
            at = e.ir.add(start, e.ir.mul(number, e.const(group)))
            here = e.address(numbers, at, I8)
            scale, offset, misfit = _fit(e, here, e.address(values, at), group)
            cell = e.ir.add(e.ir.mul(e.ir.add(e.ir.mul(tile, groups), number), e.const(TILE)), lane)
            e.store(scale, e.address(scales, cell))
            e.store(offset, e.address(offsets, cell))
            with e.ir.if_then(misfit):
                e.store(ir.Constant(F32, 1.0), misfits)
            first = e.ir.add(e.ir.mul(tile, columns), e.ir.mul(number, e.const(group)))
            with e.loop(e.const(0), e.const(group)) as index:
                code = e.load(e.address(here, index, I8), I8)
                cell = e.ir.add(e.ir.mul(e.ir.add(first, index), e.const(TILE)), lane)
                e.store(code, e.address(codes, cell, I8))
    return e.finish()


def _fit(e: Emitter, numbers: Value, values: Value, group: int) -> tuple[Value, Value, Value]:
    """(scale, offset, whether they miss a value) of one group."""
    starts = range(0, group, LANES)
    packed = [e.load(e.address(numbers, e.const(at), I8), ir.VectorType(I8, LANES)) for at in starts]
    x = [e.ir.sitofp(e.ir.zext(part, INTS), VECTOR) for part in packed]
    y = [e.load(e.address(values, e.const(at))) for at in starts]
    share = e.vector(1.0 / group)
    middle, mean = (e.ir.fmul(e.splat(e.sum(_total(e, parts))), share) for parts in (x, y))
    apart = [e.ir.fsub(part, middle) for part in x]
    products = [e.ir.fmul(a, b) for a, b in zip(apart, y, strict=True)]
    squares = [e.ir.fmul(a, a) for a in apart]
    spread = e.call("llvm.maxnum", e.splat(e.sum(_total(e, squares))), e.vector(0.5))
    scale = e.ir.fdiv(e.splat(e.sum(_total(e, products))), spread)
    offset = e.ir.fsub(mean, e.ir.fmul(scale, middle))
    errors, sizes = e.vector(0.0), e.vector(0.0)
    for number, value in zip(x, y, strict=True):
        error = e.ir.fsub(e.fma(number, scale, offset), value)
        errors = e.call("llvm.maxnum", errors, e.call("llvm.fabs", error))
        sizes = e.call("llvm.maxnum", sizes, e.call("llvm.fabs", value))
    limit = e.ir.fmul(e.largest(sizes), ir.Constant(F32, _FIT_ERROR))
    misfit = e.ir.fcmp_unordered(">", e.largest(errors), limit)
    zero = ir.Constant(ir.IntType(32), 0)
    return e.ir.extract_element(scale, zero), e.ir.extract_element(offset, zero), misfit


def _total(e: Emitter, parts: list[Value]) -> Value:
    total = parts[0]
    for part in parts[1:]:
        total = e.ir.fadd(total, part)
    return total
