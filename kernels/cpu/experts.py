"""Layers of many experts on CPUs: only what a pass touches is read.

Those that can be packed are (`kernels.cpu.packed.experts`); plain float types and layers whose sizes fill no
tiles stay as in the file, and few rows an expert are multiplied as its blocks are read. For more of them, as
prompts have, a slice of an expert at a time becomes a matrix in scratch memory, which torch multiplies.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.contract import QuantizedMatrix
from kernels.cpu.compiler import LANES, shared_out, wide_registers
from kernels.cpu.dots import host_dots
from kernels.cpu.expert_pairs import Pairs, sort_kernel, sorted_pairs
from kernels.cpu.expert_rows import ROW_TYPES, down_kernel, open_kernel, rows_kernel
from kernels.cpu.packed.experts import PackedExperts, few_rows
from kernels.quant.formats import GGMLType
from kernels.reference.experts import Experts, chosen
from kernels.reference.gate import gate, scaled

_SLICE_VALUES = 1 << 19
"""Values of a slice: they stay in the second cache until they are multiplied."""
_MOST_ROWS = dict(zip((torch.float32, torch.bfloat16), (16, 10) if wide_registers() else (8, 8), strict=True))
"""Rows an expert, in the mean, up to which its blocks are multiplied as they are read: measured on AVX-512
cores with AMX and on AVX2 cores, Q4_K."""


_MOST_PACKED_ROWS = 100
"""The same of packed ones whose products are of bytes, on AVX-512 cores: to decode experts for torch takes
longer, with AMX too. 62 rows an expert: 240 ms a layer of 128 experts of 2,048 x 768, by torch 355."""


def serves(experts: Experts) -> bool:
    """Whether rows of these experts are read here."""
    parts = [*experts.gate_up, experts.down]
    sizes = (experts.router.shape[1], experts.down.shape[1])
    return all(part.type in ROW_TYPES for part in parts) and not any(size % LANES for size in sizes)


def compile_experts(experts: Experts, dtype: torch.dtype) -> None:
    """Have the kernels before the first pass."""
    first, second = _halves(experts)
    sort_kernel(True)
    open_kernel(first.type, second.type, experts.activation)
    down_kernel(experts.down.type)
    for type in {first.type, second.type, experts.down.type}:
        rows_kernel(type, dtype)


def apply_cpu_experts(
    x: Tensor, experts: Experts | PackedExperts, dtype: torch.dtype, routed: Tensor | None = None
) -> Tensor:
    """x float32 [T, hidden] → float32 [T, hidden], as `kernels.reference.experts.apply_experts`."""
    own = experts.own if isinstance(experts, PackedExperts) else experts
    pairs = sorted_pairs(*chosen(x if routed is None else routed, own), own.count)
    if pairs.count > _most_rows(experts, dtype) * pairs.groups:
        return _by_slices(x, experts, pairs, dtype)
    x = x.contiguous()
    if not isinstance(experts, PackedExperts):
        return _by_rows(x, experts, pairs)
    few_rows(x, experts, pairs, out := torch.zeros_like(x))
    return out


def _most_rows(experts: Experts | PackedExperts, dtype: torch.dtype) -> int:
    by_bytes = wide_registers() and host_dots().by_bytes
    packed = isinstance(experts, PackedExperts) and not experts.exact
    return _MOST_PACKED_ROWS if packed and by_bytes else _MOST_ROWS[dtype]


def _by_rows(x: Tensor, experts: Experts, pairs: Pairs) -> Tensor:
    hidden, size, groups = x.shape[1], experts.down.shape[1], pairs.groups
    first, second = _halves(experts)
    products = torch.empty(pairs.count, 2, size)
    *of_pairs, weights = pairs.addresses
    open_kernel(first.type, second.type, experts.activation)(
        *shared_out(groups * size // LANES), size // LANES, hidden, size, first.address, second.address,
        first.stride, second.stride, _address(experts.gate_up_bias), *of_pairs, x.data_ptr(),
        products.data_ptr(),
    )  # fmt: skip
    scaled(products, experts.activation_scale)
    out = torch.zeros_like(x)
    down = _Stacked.of(experts.down, experts.count)
    down_kernel(down.type)(
        *shared_out(hidden // LANES), groups, hidden, size, down.address, down.stride,
        _address(experts.down_bias), *of_pairs, weights, products.data_ptr(), out.data_ptr(),
    )  # fmt: skip
    return out


Product = Callable[[Tensor, int], Tensor]
"""(x [n, columns], an expert) → float32 [n, rows]."""


def _by_slices(x: Tensor, experts: Experts | PackedExperts, pairs: Pairs, dtype: torch.dtype) -> Tensor:
    out, given, starts = torch.zeros_like(x), x.to(dtype)[pairs.tokens], pairs.starts.tolist()
    own, wide, down = _products(experts, dtype)
    tokens, weights = pairs.tokens, pairs.weights
    for number, expert in enumerate(pairs.experts.tolist()):
        span = slice(starts[number], starts[number + 1])
        gate_up = torch.cat([product(given[span], expert) for product in wide], dim=1)
        if own.gate_up_bias is not None:
            gate_up += own.gate_up_bias[expert]
        opened = scaled(gate(gate_up, own.activation), own.activation_scale)
        result = down(opened.to(dtype), expert)
        if own.down_bias is not None:
            result += own.down_bias[expert]
        out.index_add_(0, tokens[span], result.mul_(weights[span, None]))
    return out


def _products(experts: Experts | PackedExperts, dtype: torch.dtype) -> tuple[Experts, list[Product], Product]:
    """All but the matrices, and the products with gate and up, or with both, and with down."""
    if isinstance(experts, PackedExperts):
        stacks = (experts.gate, experts.up, experts.down)
        *both, last = (partial(stack.product, exact=experts.exact) for stack in stacks)
        return experts.own, list(both), last
    scratch = torch.empty(_SLICE_VALUES, dtype=dtype)
    parts = [_Stacked.of(part, experts.count) for part in (*experts.gate_up, experts.down)]
    products: list[Product] = [partial(part.product, scratch=scratch) for part in parts]
    *wide, down = products
    return experts, wide, down


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
            rows_kernel(self.type, scratch.dtype)(*shared_out(count), self.columns, source, values.data_ptr())
            y[:, start : start + count] = F.linear(x, values)
        return y


def _halves(experts: Experts) -> tuple[_Stacked, _Stacked]:
    """Gate and up, which may lie in one matrix, the gate's rows first."""
    parts = [_Stacked.of(part, experts.count) for part in experts.gate_up]
    if len(parts) == 2:
        return parts[0], parts[1]
    both = parts[0]
    return both, replace(both, address=both.address + both.rows // 2 * both.row_bytes)


def _address(values: Tensor | None) -> int:
    return 0 if values is None else values.data_ptr()
