"""Layers of many experts on CPUs: only what a pass touches is decoded, from the file's own blocks.

Few rows an expert are multiplied as its blocks are read. For more of them, as prompts have, a slice of an
expert at a time becomes a matrix in scratch memory, which torch multiplies.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.contract import QuantizedMatrix
from kernels.cpu.compiler import LANES, threads_for
from kernels.cpu.expert_rows import ROW_TYPES, down_kernel, open_kernel, rows_kernel
from kernels.quant.formats import GGMLType
from kernels.reference.experts import Experts, chosen
from kernels.reference.gate import gate, scaled

_PIECES_PER_THREAD = 8
_SLICE_VALUES = 1 << 19
"""Values of a slice: they stay in the second cache until they are multiplied."""
_MOST_ROWS = {torch.float32: 16, torch.bfloat16: 10}
"""Rows an expert, in the mean, up to which its blocks are multiplied as they are read: measured on AVX-512
cores with AMX, Q4_K."""


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The P pairs of a token and an expert that it uses, expert after expert."""

    experts: Tensor
    """int64 [G], those touched."""
    starts: Tensor
    """int64 [G + 1], the first pair of each."""
    tokens: Tensor
    """int64 [P]."""
    weights: Tensor
    """float32 [P]."""


def serves(experts: Experts) -> bool:
    """Whether rows of these experts are read here."""
    parts = [*experts.gate_up, experts.down]
    sizes = (experts.router.shape[1], experts.down.shape[1])
    return all(part.type in ROW_TYPES for part in parts) and not any(size % LANES for size in sizes)


def compile_experts(experts: Experts, dtype: torch.dtype) -> None:
    """Have the kernels before the first pass."""
    first, second = _halves(experts)
    open_kernel(first.type, second.type, experts.activation)
    down_kernel(experts.down.type)
    for type in {first.type, second.type, experts.down.type}:
        rows_kernel(type, dtype)


def apply_cpu_experts(
    x: Tensor, experts: Experts, dtype: torch.dtype, routed: Tensor | None = None
) -> Tensor:
    """x float32 [T, hidden] → float32 [T, hidden], as `kernels.reference.experts.apply_experts`."""
    ids, weights = chosen(x if routed is None else routed, experts)
    pairs = _sorted_pairs(ids, weights)
    if len(pairs.tokens) <= _MOST_ROWS[dtype] * len(pairs.experts):
        return _by_rows(x.contiguous(), experts, pairs)
    return _by_slices(x, experts, pairs, dtype)


def _sorted_pairs(ids: Tensor, weights: Tensor) -> _Pairs:
    flat = ids.flatten()
    order = flat.argsort(stable=True)
    experts, counts = flat[order].unique_consecutive(return_counts=True)
    starts = F.pad(counts.cumsum(0), (1, 0))
    return _Pairs(experts, starts, order // ids.shape[1], weights.flatten()[order])


def _by_rows(x: Tensor, experts: Experts, pairs: _Pairs) -> Tensor:
    hidden, size, groups = x.shape[1], experts.down.shape[1], len(pairs.experts)
    first, second = _halves(experts)
    products = torch.empty(len(pairs.tokens), 2, size)
    of_pairs = [part.data_ptr() for part in (pairs.experts, pairs.starts, pairs.tokens)]
    items, threads, chunk = _shared_out(groups * size // LANES)
    open_kernel(first.type, second.type, experts.activation)(
        threads, items, chunk, size // LANES, hidden, size, first.address, second.address, first.stride,
        second.stride, _address(experts.gate_up_bias), *of_pairs, x.data_ptr(), products.data_ptr(),
    )  # fmt: skip
    scaled(products, experts.activation_scale)
    out = torch.zeros_like(x)
    down = _Stacked.of(experts.down, experts.count)
    items, threads, chunk = _shared_out(hidden // LANES)
    down_kernel(down.type)(
        threads, items, chunk, groups, hidden, size, down.address, down.stride,
        _address(experts.down_bias), *of_pairs, pairs.weights.data_ptr(), products.data_ptr(), out.data_ptr(),
    )  # fmt: skip
    return out


def _by_slices(x: Tensor, experts: Experts, pairs: _Pairs, dtype: torch.dtype) -> Tensor:
    out, given, starts = torch.zeros_like(x), x.to(dtype)[pairs.tokens], pairs.starts.tolist()
    scratch = torch.empty(_SLICE_VALUES, dtype=dtype)
    wide = [_Stacked.of(part, experts.count) for part in experts.gate_up]
    down = _Stacked.of(experts.down, experts.count)
    for number, expert in enumerate(pairs.experts.tolist()):
        span = slice(starts[number], starts[number + 1])
        gate_up = torch.cat([part.product(given[span], expert, scratch) for part in wide], dim=1)
        if experts.gate_up_bias is not None:
            gate_up += experts.gate_up_bias[expert]
        opened = scaled(gate(gate_up, experts.activation), experts.activation_scale)
        result = down.product(opened.to(dtype), expert, scratch)
        if experts.down_bias is not None:
            result += experts.down_bias[expert]
        out.index_add_(0, pairs.tokens[span], result.mul_(pairs.weights[span, None]))
    return out


@dataclass(frozen=True, slots=True)
class _Stacked:
    """The matrices [rows, columns] of one part of all experts in memory."""

    type: GGMLType
    rows: int
    columns: int
    address: int
    stride: int
    """Bytes from one expert to the next."""
    row_bytes: int

    @staticmethod
    def of(matrix: QuantizedMatrix, count: int) -> "_Stacked":
        rows, raw = matrix.shape[0] // count, matrix.raw
        stride = raw.numel() // count
        return _Stacked(matrix.type, rows, matrix.shape[1], raw.data_ptr(), stride, stride // rows)

    def product(self, x: Tensor, expert: int, scratch: Tensor) -> Tensor:
        """x [n, columns] → float32 [n, rows], a slice of one expert's rows after another."""
        y = torch.empty(x.shape[0], self.rows)
        step = max(1, scratch.numel() // self.columns)
        for start in range(0, self.rows, step):
            count = min(step, self.rows - start)
            values = scratch[: count * self.columns].view(count, self.columns)
            source = self.address + expert * self.stride + start * self.row_bytes
            items, threads, chunk = _shared_out(count)
            rows_kernel(self.type, scratch.dtype)(
                threads, items, chunk, self.columns, source, values.data_ptr()
            )
            y[:, start : start + count] = F.linear(x, values)
        return y


def _halves(experts: Experts) -> tuple[_Stacked, _Stacked]:
    """Gate and up, which may lie in one matrix, the gate's rows first."""
    parts = [_Stacked.of(part, experts.count) for part in experts.gate_up]
    if len(parts) == 2:
        return parts[0], parts[1]
    both = parts[0]
    return both, replace(both, address=both.address + both.rows // 2 * both.row_bytes)


def _shared_out(items: int) -> tuple[int, int, int]:
    """(items, threads, items that a thread draws at once)."""
    threads = threads_for(items)
    return items, threads, max(1, items // (threads * _PIECES_PER_THREAD))


def _address(values: Tensor | None) -> int:
    return 0 if values is None else values.data_ptr()
