"""Operations of CPUs: compiled kernels for passes of few rows, torch for the rest."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from kernels.contract import (
    PLAIN_BRANCH,
    Activation,
    Branch,
    ExpertMatrices,
    LayerAttention,
    PassLayout,
    QuantizedMatrix,
    Rotation,
    Routing,
)
from kernels.cpu.compiler import LANES, wide_registers
from kernels.cpu.decode import DecodeTables, HeadNorm, attend_decode, attention_kernel
from kernels.cpu.experts import apply_cpu_experts, compile_experts, serves
from kernels.cpu.norm import add_norm
from kernels.cpu.quant_linear import MOST_ROWS, apply_quant_linear, product_kernel
from kernels.cpu.quant_weights import QuantLinear, make_quant_linear
from kernels.reference.dense_linear import DenseLinear, make_dense
from kernels.reference.experts import Experts
from kernels.reference.gate import activate, gate, scaled
from kernels.reference.operations import (
    DENSE_EMBEDDING_BYTES,
    Embedding,
    NormWeight,
    PreparedPass,
    TorchOperations,
    temperatures,
)
from kernels.reference.paged_kv import PagedKV

_FEW_TOKENS = {torch.float32: 16, torch.bfloat16: 8} if wide_registers() else {}
_FEWEST_TOKENS = 2
"""By the dense weights' type: passes of at most so many rows multiply by quants, faster up to there."""


@dataclass(slots=True)
class CPULinear:
    """A weight as the dense one, and as quants for few rows where its type and shape allow it."""

    dense: DenseLinear
    quantised: QuantLinear | None
    activation: Activation | None = None
    """Of [gate; up], or of [up] alone."""
    gated: bool = False
    activation_scale: float = 1.0


@dataclass(slots=True)
class CPUPass(PreparedPass):
    """`decode` is None for passes that read prompts."""

    decode: DecodeTables | None = None
    factors: dict[tuple[float, float, int], Tensor] = field(default_factory=dict)
    """What queries are multiplied by, float32 [T], by scale and temperature."""

    def query_factors(self, attention: LayerAttention) -> Tensor:
        """Made for the first layer of a kind."""
        kind = attention.scale, attention.temperature, attention.temperature_length
        if kind not in self.factors:
            positions = self.layout.positions
            made = torch.full(positions.shape, attention.scale)
            self.factors[kind] = made.mul_(temperatures(attention, positions).flatten())
        return self.factors[kind]


class CPUOperations(TorchOperations):
    """`kernels.contract.Operations` for CPUs."""

    def __init__(self, device: torch.device, weight_dtype: str, kv_dtype: str, block_size: int) -> None:
        """Raise ValueError naming an option that is not one of its choices."""
        super().__init__(device, weight_dtype, kv_dtype, block_size)
        self.few_tokens: int = _FEW_TOKENS.get(self.weight_dtype, _FEWEST_TOKENS)
        self.verify_rows = max(self.few_tokens, TorchOperations.verify_rows)
        self.name = f"LLVM for few rows, {self.name}"

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Kernels are compiled beside the conversion: the first rows must not wait for them."""
        compiler = threading.Thread(target=_compile_products, name="kernels", daemon=True)
        compiler.start()
        yield
        compiler.join()

    def make_kv(self, num_layers: int, num_blocks: int, kv_heads: int, head_dim: int) -> PagedKV:
        """As the definition's; its attention is compiled at once."""
        if not head_dim % LANES:
            attention_kernel(head_dim, self.kv_format)
        return super().make_kv(num_layers, num_blocks, kv_heads, head_dim)

    def make_linear(self, parts: Sequence[QuantizedMatrix], bias: Tensor | None) -> Any:
        """Both forms."""
        return self._make(parts, bias, None)

    def make_gate(
        self,
        parts: Sequence[QuantizedMatrix],
        bias: Tensor | None,
        activation: Activation = "silu",
        activation_scale: float = 1.0,
    ) -> Any:
        """Both forms; the kernel over quants has one gate, others follow it, and so does the scale."""
        made = self._make(parts, bias, activation, gated=len(parts) > 1)
        made.activation_scale = activation_scale
        return made

    def _make(
        self,
        parts: Sequence[QuantizedMatrix],
        bias: Tensor | None,
        activation: Activation | None,
        gated: bool = False,
    ) -> CPULinear:
        shape = sum(part.shape[0] for part in parts), parts[0].shape[1]
        weight = torch.empty(shape, dtype=self.weight_dtype)
        added = None if bias is None else self.make_vector(bias)
        quantised = make_quant_linear(parts, added, gated and activation == "silu", weight)
        if quantised is None:
            del weight
            return CPULinear(super().make_linear(parts, bias), None, activation, gated)
        return CPULinear(make_dense(weight, added), quantised, activation, gated)

    def make_embedding(self, matrix: QuantizedMatrix, _tied: Any = None, /) -> Embedding:
        """As the definition's; small ones are read from the file's blocks by the compiled kernel."""
        vocab, hidden = matrix.shape
        if matrix.row_order is None and vocab * hidden * 4 <= DENSE_EMBEDDING_BYTES:
            dense = torch.empty(vocab, hidden)
            if make_quant_linear([matrix], None, False, dense) is not None:
                return Embedding(dense, None, matrix.type, hidden)
        return super().make_embedding(matrix)

    def weight_bytes(self, handle: Any) -> int:
        """Memory held by a handle."""
        if not isinstance(handle, CPULinear):
            return super().weight_bytes(handle)
        return handle.dense.nbytes + (0 if handle.quantised is None else handle.quantised.nbytes)

    def _prepare(self, layout: PassLayout, kv: PagedKV, rotations: Sequence[Rotation]) -> CPUPass:
        """With the tables of a pass of few tokens or of decode rows alone."""
        made = CPUPass(kv, rotations, layout)
        aligned = not kv.head_dim % LANES and not kv.block_size % LANES
        few = sum(layout.query_lens) <= self.few_tokens
        if aligned and (few or layout.num_decode == len(layout.query_lens)):
            made.decode = _decode_tables(layout, kv.block_size)
        return made

    def add_norm(
        self,
        residual: Tensor,
        delta: Tensor | None,
        norm: NormWeight | None,
        rows: Tensor | None = None,
        branch: Branch = PLAIN_BRANCH,
    ) -> Tensor:
        """One kernel where a branch is added as it is."""
        narrow = delta is not None and delta.dtype is not torch.float32
        plain = norm is not None and not norm.centred and norm.bias is None
        if norm is None or residual.shape[1] % LANES or narrow or not plain or branch != PLAIN_BRANCH:
            return super().add_norm(residual, delta, norm, rows, branch)
        if rows is not None and rows.shape[0] != residual.shape[0]:
            residual, delta = residual[rows], None if delta is None else delta[rows]
        return add_norm(residual, delta, norm.scaled, norm.eps_length)

    def linear(self, x: Tensor, handle: Any) -> Tensor:
        """By quants for few rows."""
        if handle.quantised is not None and x.shape[0] <= self.few_tokens:
            return apply_quant_linear(x, handle.quantised)
        return super().linear(x, handle.dense)

    def gated_linear(self, x: Tensor, handle: Any) -> Tensor:
        """By quants for few rows."""
        product = self.linear(x, handle)
        if product.shape[1] == handle.dense.out_features:
            open_gate = gate if handle.gated else activate
            product = open_gate(product, handle.activation)
        return scaled(product, handle.activation_scale)

    def make_experts(
        self,
        matrices: ExpertMatrices,
        routing: Routing,
        activation: Activation,
        activation_scale: float = 1.0,
    ) -> Experts:
        """As the definition's; their kernels are compiled at once."""
        made = super().make_experts(matrices, routing, activation, activation_scale)
        if serves(made):
            compile_experts(made, self.weight_dtype)
        return made

    def experts(self, x: Tensor, handle: Experts, routed: Tensor | None = None) -> Tensor:
        """From the file's own blocks."""
        if not serves(handle):
            return super().experts(x, handle, routed)
        return apply_cpu_experts(x.to(torch.float32), handle, self.weight_dtype, routed)

    def attend(self, qkv: Tensor, prepared: Any, layer: int, attention: LayerAttention) -> Tensor:
        """One kernel over the KV in place for passes of few tokens or of decode rows alone."""
        own, norm = prepared[attention.group], attention.qk_norm
        if own.decode is None or attention.norms_values:
            return super().attend(qkv, prepared, layer, attention)
        return attend_decode(
            qkv.to(torch.float32).contiguous(), own.rotation(attention.rotation),
            None if norm is None else HeadNorm(norm.scaled, norm.eps_length, attention.norm_rotated), own.kv,
            layer, own.decode, own.query_factors(attention), attention.window, attention.softcap,
            attention.sinks,
        )  # fmt: skip


def _decode_tables(layout: PassLayout, block_size: int) -> DecodeTables:
    width = -(-max(layout.context_lens) // block_size)
    tables = [[*table[:width], *[0] * (width - len(table))] for table in layout.block_tables]
    contexts = [c - q + 1 for c, q in zip(layout.context_lens, layout.query_lens, strict=True)]
    starts = list(accumulate(layout.query_lens, initial=0))
    return DecodeTables(torch.tensor(tables), torch.tensor(starts), torch.tensor(contexts))


def _compile_products() -> None:
    rows = 1
    while rows <= MOST_ROWS:
        product_kernel(rows)
        rows *= 2
