"""Linear layers on CPUs: one copy of each weight, from which passes of few rows and of many compute.

Few rows are multiplied with the packed weights as they lie in memory. For many a slice of values at a time
becomes a matrix in scratch memory, which torch multiplies. Types that have no packed form stay as in the
file, and torch decodes a slice of them at a time; plain float types are torch's own matrices.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.contract import Activation, QuantizedMatrix
from kernels.cpu.activations import Activations
from kernels.cpu.compiler import LANES
from kernels.cpu.packed.products import PackedProduct
from kernels.cpu.packed.tiles import Allocate, PackedMatrix, is_packable, pack
from kernels.cpu.packed.values import SLICE_BYTES, slices_of
from kernels.host_memory import host_bytes
from kernels.quant.dequant import dequantize
from kernels.quant.formats import GGMLType
from kernels.reference.dense_linear import DenseLinear, make_dense

PLAIN = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)


@dataclass(frozen=True, slots=True)
class RawMatrix:
    """A weight [rows, columns] as its file holds it."""

    type: GGMLType
    rows: int
    columns: int
    lines: Tensor
    """uint8 [rows, bytes]."""

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self.lines.nbytes


Part = PackedMatrix | RawMatrix | DenseLinear


class CPULinear:
    """A weight as matrices that are stacked by rows."""

    def __init__(
        self,
        parts: list[Part],
        bias: Tensor | None,
        exact: bool,
        activation: Activation | None = None,
        gated: bool = False,
        activation_scale: float = 1.0,
    ) -> None:
        """bias: float32 [out]; exact: activations of few rows stay float32.

        activation: of [gate; up], or of [up] alone where it is not gated.
        """
        self.parts, self.bias = parts, bias
        self.activation, self.gated, self.activation_scale = activation, gated, activation_scale
        self.exact = exact
        self.out_features = sum(rows_of(part) for part in parts)
        self.fused_gate = activation if gated and _is_pair(parts) else None
        """What few rows go through as they are multiplied: gate and up are one packed matrix."""
        self.few_width = self.out_features // (1 if self.fused_gate is None else 2)
        self.few_stride, first = self.few_width, 0
        """Columns of few rows' results, with room for the padding of tiles."""
        self.products: list[tuple[int, PackedProduct | RawMatrix | DenseLinear]] = []
        """(first row, what computes it) for few rows."""
        for part in parts:
            own = None if bias is None else bias[first : first + rows_of(part)]
            if isinstance(part, PackedMatrix):
                padded = None if own is None else F.pad(own, (0, -len(own) % LANES))
                product = PackedProduct(part, padded, self.fused_gate, exact)
                self.products.append((first, product))
                self.few_stride = max(self.few_stride, first + product.width)
            else:
                self.products.append((first, part))
            first += rows_of(part)

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return sum(part.nbytes for part in self.parts) + (0 if self.bias is None else self.bias.nbytes)


def _is_pair(parts: list[Part]) -> bool:
    (first, *others) = parts
    return not others and isinstance(first, PackedMatrix) and first.rows % (2 * LANES) == 0


def make_parts(
    matrices: Sequence[QuantizedMatrix], dtype: torch.dtype, memory: Allocate = host_bytes
) -> list[Part]:
    """Stacked matrices, neighbours of one type joined.

    dtype: of plain float types; memory: of packed ones.
    """
    made: list[Part] = []
    for _, group in groupby(matrices, key=lambda matrix: matrix.type):
        joined = list(group)
        for some in [joined] if is_packable(joined) else [[matrix] for matrix in joined]:
            packed = pack(some, memory) if is_packable(some) else None
            made += [_unpacked(matrix, dtype) for matrix in some] if packed is None else [packed]
    return made


def _unpacked(matrix: QuantizedMatrix, dtype: torch.dtype) -> Part:
    if matrix.type in PLAIN:
        values, order = dequantize(matrix.raw, matrix.type, matrix.shape), matrix.row_order
        return make_dense((values if order is None else values[order]).to(dtype), None)
    lines = matrix.raw.view(matrix.shape[0], -1)
    return RawMatrix(
        matrix.type, *matrix.shape, lines if matrix.row_order is None else lines[matrix.row_order]
    )


def few_rows(x: Tensor, linear: CPULinear) -> Tensor:
    """x [T, in] → float32 [T, out], or [T, out / 2] through the gate where that is fused."""
    if x.dtype is not torch.float32 or not x.is_contiguous():
        x = x.to(torch.float32).contiguous()
    stride, width = linear.few_stride, linear.few_width
    out = torch.empty(x.shape[0], stride)
    source, address = Activations(x, linear.exact), out.data_ptr()
    for first, product in linear.products:
        # A tile's padding is overwritten by the next part.
        if isinstance(product, PackedProduct):
            product(source, address + 4 * first, stride)
            continue
        end = first + rows_of(product)
        out[:, first:end] = _product(x, product)
        if linear.bias is not None:
            out[:, first:end] += linear.bias[first:end]
    return out if stride == width else out[:, :width].contiguous()


def many_rows(x: Tensor, linear: CPULinear, dtype: torch.dtype) -> Tensor:
    """x [T, in] → [T, out] of `dtype`, as torch multiplies."""
    x = x.to(dtype)
    out, first = torch.empty(x.shape[0], linear.out_features, dtype=dtype), 0
    for part in linear.parts:
        if isinstance(part, PackedMatrix):
            for start, values in slices_of(part, dtype):
                place = first + start
                out[:, place : place + values.shape[1]] = torch.mm(x, values)
        else:
            out[:, first : first + rows_of(part)] = _product(x, part)
        first += rows_of(part)
    return out if linear.bias is None else out.add_(linear.bias)


def rows_of(part: Part) -> int:
    """Of a part's matrix."""
    return part.out_features if isinstance(part, DenseLinear) else part.rows


def _product(x: Tensor, part: RawMatrix | DenseLinear) -> Tensor:
    if isinstance(part, DenseLinear):
        return part.product(x.to(part.dtype))
    return torch.cat([F.linear(x, values.to(x.dtype)) for values in _raw_slices(part)], dim=1)


def _raw_slices(part: RawMatrix) -> Iterator[Tensor]:
    """float32 [n, columns]."""
    step = max(1, SLICE_BYTES // (4 * part.columns))
    for lines in part.lines.split(step):
        yield dequantize(lines.reshape(-1), part.type, (lines.shape[0], part.columns))
