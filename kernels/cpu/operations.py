"""Operations of CPUs: compiled kernels for passes of few rows, torch for the rest."""

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from queue import SimpleQueue
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
from kernels.cpu.attention.decode import DecodeTables, attend_decode, attention_kernel
from kernels.cpu.attention.heads import HeadNorm
from kernels.cpu.attention.prompts import PromptTables, attend_prompts, compile_prompts, prompt_tables
from kernels.cpu.compiler import LANES, wide_registers
from kernels.cpu.dots import Dots, host_dots
from kernels.cpu.experts import apply_cpu_experts, compile_experts, serves
from kernels.cpu.free_cores import fit_team
from kernels.cpu.linear import CPULinear, few_rows, make_parts, many_rows
from kernels.cpu.norm import add_norm
from kernels.cpu.packed.experts import PackedExperts, compile_packed, pack_experts, without_matrices
from kernels.cpu.packed.kinds import ProductKind
from kernels.cpu.packed.products import PackedProduct, compile_products
from kernels.cpu.packed.tiles import Allocate, PackedMatrix, is_packable
from kernels.cpu.packed.values import rows_of, values_kernel
from kernels.cpu.recorded.passes import Recorder
from kernels.cpu.scratch import aside
from kernels.cpu.tile_registers import has_tile_registers
from kernels.host_memory import HostMemory, host_bytes
from kernels.reference.gate import activate, gate, scaled
from kernels.reference.operations import (
    Embedding,
    NormWeight,
    PreparedPass,
    TorchOperations,
    rms_norm,
)
from kernels.reference.paged_kv import PagedKV
from kernels.reference.rotations import temperatures
from kernels.reference.weight_probe import MANY_ROWS

_FEW_ROUNDED, _FEW_EXACT, _FEW_IN_REGISTERS = (16 if host_dots() is Dots.PLAIN else 32), 16, 96
"""Passes of at most so many rows multiply packed weights, with rounded activations or as they are: measured
on AVX-512 cores with AMX, where torch's bfloat16 overtakes rounded ones between 32 and 64 rows, and those
that tile registers multiply between 128 and 192. With nothing to multiply by but what LLVM makes of it
torch's float32 does so between 16 and 32."""


@dataclass(frozen=True, slots=True)
class PackedEmbedding:
    """Rows of packed weights."""

    matrix: PackedMatrix
    shared: bool
    """Whether they are the output's, counted there."""


@dataclass(slots=True)
class CPUPass(PreparedPass):
    """What of it compiled kernels attend to; neither where torch does."""

    decode: DecodeTables | None = None
    """Of a pass of few tokens, or of the sequences that decode."""
    prompts: PromptTables | None = None
    """Of the others."""
    factors: dict[tuple[float, float, int], Tensor] = field(default_factory=dict)
    """What queries are multiplied by, float32 [T], by scale and temperature."""

    def query_factors(self, attention: LayerAttention) -> Tensor:
        """Made for the first layer of a kind."""
        kind = attention.scale, attention.temperature, attention.temperature_length
        if kind not in self.factors:
            with aside():
                positions = self.layout.positions
                made = torch.full(positions.shape, attention.scale)
                self.factors[kind] = made.mul_(temperatures(*kind[1:], positions).flatten())
        return self.factors[kind]

    def rotation(self, kind: int) -> Tensor:
        """Made for the first layer of a kind too."""
        with aside():
            # A class with slots is made anew, which `super` alone does not know.
            return super(CPUPass, self).rotation(kind)


class CPUOperations(TorchOperations):
    """`kernels.contract.Operations` for CPUs."""

    probed_rows = MANY_ROWS

    def __init__(self, device: torch.device, weight_dtype: str, kv_dtype: str, block_size: int) -> None:
        """Raise ValueError naming an option that is not one of its choices."""
        super().__init__(device, weight_dtype, kv_dtype, block_size)
        self.weight_format = "as in the file"
        self.exact = weight_dtype == "float32"
        """Whether no activation is rounded to fewer bits than float32 has."""
        self.memory: Allocate = host_bytes
        """Of packed linears and experts."""
        self._compiled: set[ProductKind] = set()
        self._wanted: SimpleQueue[ProductKind | None] | None = None
        few = _FEW_EXACT if self.exact else _FEW_ROUNDED
        self.few_tokens: int = _FEW_IN_REGISTERS if has_tile_registers() and not self.exact else few
        always = _always_packed(self.exact, self.weight_dtype)
        self._packed_rows = sys.maxsize if always else self.few_tokens
        """Rows up to which packed weights are multiplied."""
        self.verify_rows = max(few, TorchOperations.verify_rows)
        self.name = f"LLVM for few rows, {self.name}"

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Kernels are compiled beside the reading: the first rows must not wait for them."""
        kinds: SimpleQueue[ProductKind | None] = SimpleQueue()
        compiler = threading.Thread(target=self._compile, args=[kinds], name="kernels", daemon=True)
        compiler.start()
        self._wanted = kinds
        memory = self.memory
        if memory is host_bytes:
            self.memory = HostMemory().take
        try:
            yield
        finally:
            # A slab would stay as long as this does.
            self.memory = memory
            kinds.put(None)
            compiler.join()

    def make_kv(self, num_layers: int, num_blocks: int, kv_heads: int, head_dim: int) -> PagedKV:
        """As the definition's; its attention is compiled at once."""
        if not head_dim % LANES:
            attention_kernel(head_dim, self.kv_format)
            compile_prompts(head_dim, self.kv_format)
        return super().make_kv(num_layers, num_blocks, kv_heads, head_dim)

    def make_linear(self, parts: Sequence[QuantizedMatrix], bias: Tensor | None) -> Any:
        """Packed where the types have such a form."""
        return self._make(parts, bias)

    def make_gate(
        self,
        parts: Sequence[QuantizedMatrix],
        bias: Tensor | None,
        activation: Activation = "silu",
        activation_scale: float = 1.0,
    ) -> Any:
        """The same; the scale follows the gate."""
        made = self._make(parts, bias, activation, gated=len(parts) > 1)
        made.activation_scale = activation_scale
        return made

    def _make(
        self,
        parts: Sequence[QuantizedMatrix],
        bias: Tensor | None,
        activation: Activation | None = None,
        gated: bool = False,
    ) -> CPULinear:
        added = None if bias is None else self.make_vector(bias)
        made = CPULinear(
            make_parts(parts, self.weight_dtype, self.memory), added, self.exact, activation, gated
        )
        for _, product in made.products:
            if isinstance(product, PackedProduct) and self._wanted is not None:
                self._wanted.put(product.kind)
        return made

    def make_embedding(self, matrix: QuantizedMatrix, tied: Any = None, /) -> Any:
        """Those of the output where that is packed, else packed themselves, else the file's own bytes."""
        parts = tied.parts if tied is not None and matrix.row_order is None else []
        shared = len(parts) == 1 and isinstance(parts[0], PackedMatrix)
        if not shared and is_packable([matrix]):
            parts = make_parts([matrix], self.weight_dtype)
        if len(parts) == 1 and isinstance(parts[0], PackedMatrix):
            return PackedEmbedding(parts[0], shared)
        return Embedding(None, matrix.raw.view(matrix.shape[0], -1), matrix.type, matrix.shape[1])

    def embed(self, ids: Tensor, handle: Any, norm: NormWeight | None = None) -> Tensor:
        """Gather rows, with as many threads from here on as there are cores for."""
        if not self.exact:
            # Sums of what torch computes may depend on how many there are.
            fit_team()
        if not isinstance(handle, PackedEmbedding):
            return super().embed(ids, handle, norm)
        rows = rows_of(handle.matrix, ids)
        return rows if norm is None else rms_norm(rows, norm)

    def weight_bytes(self, handle: Any) -> int:
        """Memory held by a handle."""
        if isinstance(handle, PackedEmbedding):
            return 0 if handle.shared else handle.matrix.nbytes
        held = isinstance(handle, CPULinear | PackedExperts)
        return handle.nbytes if held else super().weight_bytes(handle)

    def _compile(self, wanted: "SimpleQueue[ProductKind | None]") -> None:
        """What is computed with the kinds of products that are asked for, until None is."""
        while (kind := wanted.get()) is not None:
            if kind not in self._compiled:
                self._compiled.add(kind)
                compile_products(kind)
                values_kernel(kind.type, self.weight_dtype, kind.dots)

    def _prepare(self, layout: PassLayout, kv: PagedKV, rotations: Sequence[Rotation]) -> CPUPass:
        """With tables where compiled kernels attend: not to many tokens where torch does so in bfloat16."""
        made = CPUPass(kv, rotations, layout)
        if kv.head_dim % LANES or kv.block_size % LANES:
            return made
        decoding, few = layout.num_decode, sum(layout.query_lens) <= self.few_tokens
        if decoding < len(layout.query_lens):
            if not few and self._attention_dtype is not torch.float32:
                return made
            made.prompts = prompt_tables(layout, kv.block_size)
        if decoding:
            made.decode = _decode_tables(layout, kv.block_size, decoding)
        return made

    def add_norm(
        self,
        residual: Tensor,
        delta: Tensor | None,
        norm: NormWeight | None,
        rows: Tensor | None = None,
        branch: Branch = PLAIN_BRANCH,
        reader: Any | None = None,
    ) -> Tensor:
        """One kernel where a branch is added as it is."""
        narrow = delta is not None and delta.dtype is not torch.float32
        plain = norm is not None and not norm.centred and norm.bias is None
        if norm is None or residual.shape[1] % LANES or narrow or not plain or branch != PLAIN_BRANCH:
            return super().add_norm(residual, delta, norm, rows, branch, reader)
        return add_norm(residual, delta, norm.scaled, norm.eps_length, rows)

    def linear(self, x: Tensor, handle: Any) -> Tensor:
        """By packed weights for few rows."""
        return self._product(x, handle)

    def gated_linear(self, x: Tensor, handle: Any) -> Tensor:
        """The gate is part of the product for few rows where it can be."""
        product = self._product(x, handle)
        if product.shape[1] == handle.out_features:
            open_gate = gate if handle.gated else activate
            product = open_gate(product, handle.activation)
        return scaled(product, handle.activation_scale)

    def _product(self, x: Tensor, handle: CPULinear) -> Tensor:
        if x.shape[0] <= self._packed_rows:
            return few_rows(x, handle)
        return many_rows(x, handle, self.weight_dtype)

    def make_experts(
        self,
        matrices: ExpertMatrices,
        routing: Routing,
        activation: Activation,
        activation_scale: float = 1.0,
    ) -> Any:
        """Packed where the types have such a form; their kernels are compiled at once."""
        stacks = pack_experts(matrices, self.memory)
        if stacks is not None:
            rest = super().make_experts(without_matrices(matrices), routing, activation, activation_scale)
            packed = PackedExperts(rest, *stacks, self.exact)
            compile_packed(packed)
            return packed
        made = super().make_experts(matrices, routing, activation, activation_scale)
        if serves(made):
            compile_experts(made, self.weight_dtype)
        return made

    def experts(self, x: Tensor, handle: Any, routed: Tensor | None = None) -> Tensor:
        """Few rows of an expert with what lies in memory."""
        if not isinstance(handle, PackedExperts) and not serves(handle):
            return super().experts(x, handle, routed)
        return apply_cpu_experts(x.to(torch.float32), handle, self.weight_dtype, routed)

    def recorder(self) -> Recorder:
        """Of kernels alone."""
        return Recorder(self.block_size)

    def attend(self, qkv: Tensor, prepared: Any, layer: int, attention: LayerAttention) -> Tensor:
        """Kernels over the KV in place."""
        own, norm = prepared[attention.group], attention.qk_norm
        if attention.norms_values or (own.decode is None and own.prompts is None):
            return super().attend(qkv, prepared, layer, attention)
        rows = qkv.to(torch.float32).contiguous()
        made = torch.empty(rows.shape[0], rows.shape[1] - 2 * own.kv.kv_heads * own.kv.head_dim)
        heads = None if norm is None else HeadNorm(norm.scaled, norm.eps_length, attention.norm_rotated)
        of_layer = rows, own.rotation(attention.rotation), heads, own.kv, layer
        scores = own.query_factors(attention), made, attention.window, attention.softcap, attention.sinks
        if own.decode is not None:
            attend_decode(*of_layer, own.decode, *scores)
        if own.prompts is not None:
            attend_prompts(*of_layer, own.prompts, *scores)
        return made


def _always_packed(exact: bool, weight_dtype: torch.dtype) -> bool:
    """Whether torch is slower at any number of rows: on AVX2 always, on AVX-512 in float32 by its choice."""
    if not wide_registers():
        return host_dots() is not Dots.PLAIN
    return not exact and weight_dtype is torch.float32


def _decode_tables(layout: PassLayout, block_size: int, count: int) -> DecodeTables:
    """Of the first `count` sequences."""
    width = -(-max(layout.context_lens[:count]) // block_size)
    tables = [[*table[:width], *[0] * (width - len(table))] for table in layout.block_tables[:count]]
    contexts = [c - q + 1 for c, q in zip(layout.context_lens[:count], layout.query_lens, strict=False)]
    starts = list(accumulate(layout.query_lens[:count], initial=0))
    return DecodeTables(torch.tensor(tables), torch.tensor(starts), torch.tensor(contexts))
