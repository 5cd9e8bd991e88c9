"""Linear layers over a file's own weights on a GPU: which kernel multiplies how many rows.

Matrices of quantised types stay so, as planes. F16, BF16 and F32 stay as they are. Integers and F64
become float16 when they are loaded, and `TritonOperations.fallbacks` says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.contract import Activation, QuantizedMatrix
from kernels.cuda.activations import Activations
from kernels.cuda.upload import Uploader
from kernels.linear.gate import gate_activations
from kernels.linear.rows import MAX_ROWS, gated_rows, linear_rows, linear_rows_parts
from kernels.linear.wide import (
    gated_batch_invariant,
    gated_wide,
    linear_batch_invariant_parts,
    linear_wide_parts,
)
from kernels.planes.dequant import parity
from kernels.planes.layout import LAYOUTS, PlanesMatrix, gate_up_order, repack
from kernels.quant.dequant import dequantize
from kernels.quant.formats import GGMLType

KEPT = {GGMLType.F16: torch.float16, GGMLType.BF16: torch.bfloat16, GGMLType.F32: torch.float32}
"""Types held as rows of their own elements."""

Weight = PlanesMatrix | Tensor


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one linear that share a type."""

    weight: Weight
    bias: Tensor | None

    @property
    def rows(self) -> int:
        """Output features."""
        return self.weight.shape[0]

    @property
    def nbytes(self) -> int:
        """Memory on the device."""
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)


@dataclass(frozen=True, slots=True)
class TritonLinear:
    """One linear: segments whose outputs stand one after another."""

    segments: list[Segment]
    activation: Activation | None = None
    """Of the gate, where rows are those of gate and up in pairs, or of these rows."""
    gated: bool = False
    activation_scale: float = 1.0

    @property
    def nbytes(self) -> int:
        """Memory on the device."""
        return sum(segment.nbytes for segment in self.segments)


class LinearMaker:
    """Turns a file's matrices into linears on one device, during one load."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.dequantized: set[GGMLType] = set()
        """Types that have no kernel and were met."""
        self._uploader = Uploader(device)
        parity(device)

    def close(self) -> None:
        """Give the staging memory back."""
        self._uploader.close()

    def linear(self, parts: Sequence[QuantizedMatrix], bias: Tensor | None) -> TritonLinear:
        """Stack parts, those of one type into one segment."""
        segments = []
        row = start = 0
        for index, part in enumerate(parts):
            row += part.shape[0]
            if index + 1 < len(parts) and parts[index + 1].type == part.type:
                continue
            first = row - sum(p.shape[0] for p in parts[start : index + 1])
            own = None if bias is None else bias[first:row].to(self.device, torch.float32).contiguous()
            segments.append(Segment(self._weight(parts[start : index + 1]), own))
            start = index + 1
        return TritonLinear(segments)

    def gate(
        self,
        parts: Sequence[QuantizedMatrix],
        bias: Tensor | None,
        activation: Activation,
        activation_scale: float,
    ) -> TritonLinear:
        """Gate and up projections as one matrix with their rows in pairs, or up alone."""
        if len(parts) == 1:
            return replace(self.linear(parts, bias), activation=activation, activation_scale=activation_scale)
        gate, up = parts
        order = gate_up_order(gate.shape[0])
        own = None if bias is None else bias[order].to(self.device, torch.float32).contiguous()
        if gate.type != up.type:
            dense = torch.cat([self._dense(part, torch.float16) for part in parts])
            weight: Weight = dense[order.to(self.device)]
        else:
            weight = self._weight(parts, order)
        return TritonLinear([Segment(weight, own)], activation, True, activation_scale)

    def stacked(self, parts: Sequence[QuantizedMatrix], order: Tensor, padding: Tensor) -> Weight:
        """The rows of parts in an order, as one matrix; planes with rows repeated as `padding` lists them."""
        kind = parts[0].type
        if kind in LAYOUTS and all(part.type == kind for part in parts):
            return self._weight(parts, order[padding], len(padding))
        dtype = KEPT.get(kind, torch.float16) if all(part.type == kind for part in parts) else torch.float16
        return torch.cat([self._dense(part, dtype) for part in parts])[order.to(self.device)]

    def _weight(self, parts: Sequence[QuantizedMatrix], order: Tensor | None = None, rows: int = 0) -> Weight:
        """rows: how many the order makes, where they are not those of the parts."""
        kind = parts[0].type
        rows, columns = rows or sum(part.shape[0] for part in parts), parts[0].shape[1]
        if order is None and any(part.row_order is not None for part in parts):
            order = _joined_order(parts)
        if kind not in LAYOUTS:
            dense = torch.cat([self._dense(part, KEPT.get(kind, torch.float16)) for part in parts])
            return dense if order is None else dense[order.to(self.device)]
        raw = torch.cat([self._uploader.upload(part.stored) for part in parts])
        return repack(raw, kind, (rows, columns), None if order is None else order.to(self.device))

    def _dense(self, part: QuantizedMatrix, dtype: torch.dtype) -> Tensor:
        """Rows in the file's order."""
        if part.type in KEPT:
            return self._uploader.upload(part.stored).view(KEPT[part.type]).view(part.shape).to(dtype)
        if part.type not in LAYOUTS:
            self.dequantized.add(part.type)
        return dequantize(part.raw, part.type, part.shape).to(self.device, dtype)


def _joined_order(parts: Sequence[QuantizedMatrix]) -> Tensor:
    orders, start = [], 0
    for part in parts:
        own = torch.arange(part.shape[0]) if part.row_order is None else part.row_order
        orders.append(own + start)
        start += part.shape[0]
    return torch.cat(orders)


def apply_linear(x: Activations, linear: TritonLinear, batch_invariant: bool = False) -> Tensor:
    """→ [splits, M, N], to be added up over the splits by who reads it.

    batch_invariant: a row's result is the same, bit by bit, whatever other rows there are.
    """
    if batch_invariant:
        return linear_batch_invariant_parts(
            x, [(segment.weight, segment.bias) for segment in linear.segments]
        )
    if x.values.shape[0] > MAX_ROWS:
        return linear_wide_parts(x, [(segment.weight, segment.bias) for segment in linear.segments])
    planes = [(part.weight, part.bias) for part in linear.segments if isinstance(part.weight, PlanesMatrix)]
    if len(planes) == len(linear.segments):
        return linear_rows_parts(x, planes)
    outputs = [linear_rows(x, segment.weight, segment.bias) for segment in linear.segments]
    if len(outputs) == 1:
        return outputs[0]
    return torch.cat([part.sum(0, dtype=torch.float32) for part in outputs], dim=1)[None]


def apply_gated(x: Activations, linear: TritonLinear, batch_invariant: bool = False) -> Activations:
    """activation(gate) * up, scaled → activations [M, ffn]; batch_invariant as for `apply_linear`."""
    activation, scale = linear.activation, linear.activation_scale
    assert activation is not None
    if not linear.gated:
        return gate_activations(apply_linear(x, linear, batch_invariant), activation, False, scale)
    (segment,) = linear.segments
    if batch_invariant:
        return gated_batch_invariant(x, segment.weight, segment.bias, activation, scale)
    if x.values.shape[0] > MAX_ROWS:
        return gated_wide(x, segment.weight, segment.bias, activation, scale)
    if segment.bias is None and isinstance(segment.weight, PlanesMatrix):
        return gated_rows(x, segment.weight, activation, scale=scale)
    return gate_activations(linear_rows(x, segment.weight, segment.bias), activation, scale=scale)
