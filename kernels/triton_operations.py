"""Every operation as Triton kernels: what runs on a GPU.

Weights stay as the file has them (`kernels.planes.layout`), the residual stream is float32,
activations are float16. Nothing here waits for the device, so that a whole pass can be captured.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from kernels.attention.decode import attend_decode, attention_decode
from kernels.attention.decode_plan import DecodePlan, plan_decode
from kernels.attention.prefill import attention_prefill
from kernels.attention.rope_append import rope_append
from kernels.attention.served import unserved_attention
from kernels.attention.shape import AttentionShape, add_sums, make_output
from kernels.contract import (
    PLAIN_BRANCH,
    Activation,
    Branch,
    ExpertMatrices,
    LayerAttention,
    Pairing,
    PassLayout,
    QuantizedMatrix,
    Rotation,
    Routing,
)
from kernels.cuda.activations import Activations, PassTables
from kernels.cuda.compile import begin_to_read_compilers
from kernels.cuda.launchers import load_one_at_a_time
from kernels.cuda.link_probe import host_gb_s
from kernels.cuda.streams import CAPTURE_LOCK
from kernels.experts.experts import TritonExperts, apply_experts, make_experts, norm_for_experts
from kernels.kv import pages
from kernels.kv.pages import LayerKV
from kernels.kv.slab_kv import SlabKV
from kernels.linear.gate import sigmoid_gate
from kernels.linear.linear import LinearMaker, TritonLinear, Weight, apply_gated, apply_linear
from kernels.linear.norm import add_norm
from kernels.linear.norm_columns import norm_columns
from kernels.linear.rows import loads_early
from kernels.planes.embedding import embed_rows
from kernels.quant.formats import KVFormat

BLOCK_SIZE = 64
"""Tokens of a KV block: one tile of the attention loop, so one page number is read for each."""

KV_CHOICES: dict[str, tuple[KVFormat, ...]] = {
    "auto": ("float16", "q8_0"),
    "float32": ("float32",),
    "float16": ("float16",),
    "bfloat16": ("bfloat16",),
    "q8_0": ("q8_0",),
}


@dataclass(frozen=True, slots=True)
class TritonNorm:
    """Weight float32 [dim] or [heads, dim]."""

    weight: Tensor
    eps: float
    bias: Tensor | None = None
    centred: bool = False


@dataclass(frozen=True, slots=True)
class TritonEmbedding:
    """Rows to gather."""

    weight: Weight
    nbytes: int
    """Of its own: 0 where it is the output matrix."""


@dataclass(slots=True)
class TritonPass:
    """What all layers of a group share in one pass."""

    tables: PassTables
    kv: SlabKV
    rotations: Sequence[Rotation]
    plans: dict[tuple[AttentionShape, int], DecodePlan] = field(default_factory=dict)

    def plan(self, shape: AttentionShape, rotation: int) -> DecodePlan:
        """How the decode rows' contexts are divided, made once for all layers of a kind."""
        kind = shape, rotation
        if kind not in self.plans:
            self.plans[kind] = plan_decode(self.tables, shape, rotation=self.rotations[rotation])
        return self.plans[kind]


class TritonOperations:
    """`kernels.contract.Operations` on a GPU."""

    rope_pairing: Pairing = "halves"
    weight_format = "as in the file"
    weight_itemsize = 2
    block_size = BLOCK_SIZE
    max_prefill_tokens = 4096
    tick_extra_ms = 8.0
    few_tokens: int | None = None
    verify_rows = 0
    runs_ahead = True

    def __init__(self, device: torch.device, kv_dtype: str, batch_independent: bool = False) -> None:
        """batch_independent: a token's result depends on its context alone, bit by bit.

        Then one kernel with one plan serves any number of rows, and decode rows are chunks of one token:
        nothing depends on who else is in a pass, on how prompts are cut, or on whether KV was computed
        again. It costs speed. Raise ValueError for a KV type that is not one of `KV_CHOICES`.
        """
        if kv_dtype not in KV_CHOICES:
            raise ValueError(f"kv_dtype: '{kv_dtype}' is not one of {', '.join(KV_CHOICES)}")
        if device == torch.device("cuda"):
            # Memory is asked about by index.
            device = torch.device("cuda", torch.cuda.current_device())
        if device.type == "cuda":
            load_one_at_a_time()
            begin_to_read_compilers()
        self.device = device
        self.kv_choices = KV_CHOICES[kv_dtype]
        self.kv_format: KVFormat = self.kv_choices[0]
        self.batch_invariant = batch_independent
        self.name = "triton, batch-independent" if batch_independent else "triton"
        self.fallbacks: list[str] = []
        self.host_gb_s: float | None = None
        self._maker: LinearMaker | None = None

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Hold the staging memory of one load; everything is on the device afterwards."""
        self.host_gb_s = host_gb_s(self.device)
        self._maker = LinearMaker(self.device)
        try:
            yield
            if self.device.type == "cuda":
                with CAPTURE_LOCK:
                    torch.cuda.synchronize(self.device)
            for kind in sorted(self._maker.dequantized, key=lambda kind: kind.name):
                note = f"{kind.name} weights are held as float16: no kernel reads that type"
                if note not in self.fallbacks:
                    self.fallbacks.append(note)
        finally:
            self._maker.close()
            self._maker = None

    def with_kv(self, kv_format: KVFormat) -> Self:
        """A copy."""
        made = copy.copy(self)
        made.kv_format = kv_format
        return made

    def kv_block_bytes(self, num_layers: int, kv_heads: int, head_dim: int) -> int:
        """Keys and values of one block."""
        return pages.block_nbytes(num_layers, kv_heads, head_dim, BLOCK_SIZE, self.kv_format)

    def check_attention(self, q_heads: int, kv_heads: int, head_dim: int) -> None:
        """What the kernels are made for."""
        if reason := unserved_attention(head_dim, self.kv_format):
            raise ValueError(
                f"{reason}; with weight_dtype bfloat16 or float32, or on the CPU, torch computes them"
            )
        AttentionShape(q_heads, kv_heads, head_dim, BLOCK_SIZE, 1.0)

    @property
    def by_torch(self) -> tuple[str, ...]:
        """Nothing: where kernels do not serve, an error says so."""
        return ()

    def captures(self, *, prompts: bool) -> bool:  # noqa: ARG002
        """Whether passes, with attention as of prompts or not, can be captured as graphs."""
        return True

    def recorder(self) -> None:
        """None: graphs are captured of passes."""

    def make_linear(self, parts: Sequence[QuantizedMatrix], bias: Tensor | None) -> TritonLinear:
        """Upload and repack."""
        return self._loader.linear(parts, bias)

    def make_gate(
        self,
        parts: Sequence[QuantizedMatrix],
        bias: Tensor | None,
        activation: Activation = "silu",
        activation_scale: float = 1.0,
    ) -> TritonLinear:
        """Upload and repack with the rows of gate and up in pairs."""
        return self._loader.gate(parts, bias, activation, activation_scale)

    def make_embedding(self, matrix: QuantizedMatrix, tied: TritonLinear | None = None, /) -> TritonEmbedding:
        """The output matrix itself where both are one tensor."""
        made = tied or self._loader.linear([matrix], None)
        return TritonEmbedding(made.segments[0].weight, 0 if tied else made.nbytes)

    def make_norm(
        self, weight: Tensor, eps: float, bias: Tensor | None = None, centred: bool = False
    ) -> TritonNorm:
        """float32 on the device."""
        scale, shift = (
            None if part is None else part.to(self.device, torch.float32).contiguous()
            for part in (weight, bias)
        )
        assert scale is not None
        return TritonNorm(scale, eps, shift, centred)

    def make_kv(self, num_layers: int, num_blocks: int, kv_heads: int, head_dim: int) -> SlabKV:
        """Reserve addresses for the paged KV of one group."""
        return SlabKV(num_layers, num_blocks, kv_heads, head_dim, BLOCK_SIZE, self.kv_format, self.device)

    def weight_bytes(self, handle: TritonLinear | TritonExperts | TritonEmbedding | TritonNorm) -> int:
        """Memory held by a handle."""
        return handle.weight.nbytes if isinstance(handle, TritonNorm) else handle.nbytes

    def prepare(
        self, layouts: Sequence[PassLayout], kv: Sequence[SlabKV], rotations: Sequence[Rotation]
    ) -> list[TritonPass]:
        """Bring a pass's tables to the device."""
        return self.prepare_tables([_tables(layout, self.device) for layout in layouts], kv, rotations)

    def prepare_tables(
        self, tables: Sequence[PassTables], kv: Sequence[SlabKV], rotations: Sequence[Rotation]
    ) -> list[TritonPass]:
        """The same from tables that are there, by group."""
        return [TritonPass(own, pages, rotations) for own, pages in zip(tables, kv, strict=True)]

    def embed(self, ids: Tensor, handle: TritonEmbedding, norm: TritonNorm | None = None) -> Tensor:
        """Gather rows."""
        rows = embed_rows(ids, handle.weight)
        return rows if norm is None else self.norm_columns(rows[None], [norm])[0]

    def add_norm(
        self,
        residual: Tensor,
        delta: Tensor | None,
        norm: TritonNorm | None,
        rows: Tensor | None = None,
        branch: Branch = PLAIN_BRANCH,
        reader: Any | None = None,
    ) -> Activations:
        """One kernel, and the router's work in it where that is faster."""
        joins, scale = joined_branch(branch)
        weight, eps, bias, centred = (
            (None, 0.0, None, False) if norm is None else (norm.weight, norm.eps, norm.bias, norm.centred)
        )
        if rows is None and joins is None and bias is None and not centred and not self.batch_invariant:
            routed = norm_for_experts(residual, delta, weight, eps, reader, scale, branch.sum_scale)
            if routed is not None:
                return routed
        return add_norm(
            residual, delta, weight, eps, rows, self.batch_invariant, joins, scale, bias, centred,
            branch.sum_scale, rows is None and _loads_early(reader, residual.shape[0]),
        )  # fmt: skip

    def linear(self, x: Activations, handle: TritonLinear) -> Tensor:
        """Partial sums [splits, T, out] for the next kernel to add up."""
        return apply_linear(x, handle, self.batch_invariant)

    def norm_columns(self, output: Tensor, norms: Sequence[TritonNorm]) -> Tensor:
        """The sum over the splits: [1, T, out]."""
        return norm_columns(output, [(norm.weight, norm.eps) for norm in norms])

    def gated_linear(self, x: Activations, handle: TritonLinear) -> Activations:
        """The gate in the product's epilogue where rows are few."""
        return apply_gated(x, handle, self.batch_invariant)

    def make_experts(
        self,
        matrices: ExpertMatrices,
        routing: Routing,
        activation: Activation,
        activation_scale: float = 1.0,
    ) -> TritonExperts:
        """Upload and repack."""
        return make_experts(self._loader, matrices, routing, activation, activation_scale)

    def experts(self, x: Activations, handle: TritonExperts, routed: Activations | None = None) -> Tensor:
        """[used, T, hidden], to be added up by the next kernel."""
        return apply_experts(x, handle, self.batch_invariant, routed)

    def add_outputs(self, first: Tensor, second: Tensor, gate: TritonLinear | None, x: Activations) -> Tensor:
        """More parts for the next kernel to add up."""
        if gate is not None:
            opened = apply_linear(x, gate, self.batch_invariant).sum(0, keepdim=True)
            second = second * torch.sigmoid(opened)
        return torch.cat([first, second])

    def attend(
        self, qkv: Tensor, prepared: Sequence[TritonPass], layer: int, attention: LayerAttention
    ) -> Activations:
        """Decode rows split by context length, chunks as packed tiles."""
        own = prepared[attention.group]
        tables, kv = own.tables, own.kv.layer(layer)
        if self.batch_invariant:
            tables = replace(tables, num_decode=0)
        shape = attention_shape(qkv, kv, attention)
        qk_norm: TritonNorm | None = attention.qk_norm
        weight, eps = (None, 0.0) if qk_norm is None else (qk_norm.weight, qk_norm.eps)
        out = make_output(tables.num_tokens, shape, qkv.device)
        if tables.num_tokens == tables.num_decode and not tables.shares_kv and not self.batch_invariant:
            follows_plan = (shape, attention.rotation) not in own.plans
            plan = own.plan(shape, attention.rotation)
            overlaps = _loads_early(attention.output, tables.num_tokens)
            attend_decode(
                qkv, tables, kv, shape, plan, out, weight, eps, attention.sinks, overlaps, follows_plan
            )
            add_sums(out, shape)
            return out
        rotation = own.rotations[attention.rotation]
        q = rope_append(qkv, tables, kv, shape, rotation, weight, eps)
        if tables.num_decode:
            attention_decode(q, tables, kv, shape, own.plan(shape, attention.rotation), out, attention.sinks)
        attention_prefill(q, tables, kv, shape, out, attention.sinks, self.batch_invariant)
        add_sums(out, shape)
        return out

    def sigmoid_gate(self, x: Activations, gate: Tensor) -> Activations:
        """One kernel."""
        return sigmoid_gate(x, gate)

    def soft_cap(self, output: Tensor, cap: float) -> Tensor:
        """Of the sum over the splits: [1, R, vocab]."""
        return self.logits(output).div_(cap).tanh_().mul_(cap)[None]

    def values(self, x: Activations) -> Tensor:
        """float16."""
        return x.values

    def as_output(self, values: Tensor) -> Tensor:
        """One partial sum."""
        return values[None]

    def logits(self, output: Tensor) -> Tensor:
        """Partial sums [splits, R, vocab] added up."""
        return output.sum(0, dtype=torch.float32)

    def block_pieces(self, kv: SlabKV, block: int) -> list[Tensor]:
        """Each a run of memory: values, then q8_0's scales."""
        planes = [kv.pages.values] if kv.pages.scales is None else [kv.pages.values, kv.pages.scales]
        return [plane[:, block] for plane in planes]

    @property
    def _loader(self) -> LinearMaker:
        if self._maker is None:
            raise RuntimeError("weights are made inside `loading`")
        return self._maker


def _loads_early(linear: Any | None, rows: int) -> bool:
    """Whether a linear has work before it needs what is before it: none that crosses over has."""
    return isinstance(linear, TritonLinear) and loads_early([part.weight for part in linear.segments], rows)


def joined_branch(branch: Branch) -> tuple[tuple[Tensor, float] | None, float]:
    """The norm that a branch goes through, and what it is multiplied by behind it.

    A scaled branch has the norm of the whole one where its eps is scaled too.
    """
    norm: TritonNorm | None = branch.norm
    if norm is None:
        return None, branch.scale / branch.activation_scale
    return (norm.weight, norm.eps * branch.activation_scale**2), branch.scale


def attention_shape(qkv: Tensor, kv: LayerKV, attention: LayerAttention) -> AttentionShape:
    """What kernels are compiled for, from what a layer computes."""
    kv_heads, head_dim = kv.values.shape[2], kv.values.shape[4]
    q_heads = qkv.shape[-1] // head_dim - 2 * kv_heads
    return AttentionShape(
        q_heads, kv_heads, head_dim, BLOCK_SIZE, attention.scale, attention.window, attention.softcap,
        attention.temperature, attention.temperature_length, attention.norm_rotated,
        attention.norms_values,
    )  # fmt: skip


def _tables(layout: PassLayout, device: torch.device) -> PassTables:
    starts = [0]
    for length in layout.query_lens:
        starts.append(starts[-1] + length)
    width = max(len(table) for table in layout.block_tables)
    tables = [table + [0] * (width - len(table)) for table in layout.block_tables]
    return PassTables(
        query_starts=torch.tensor(starts, dtype=torch.int32, device=device),
        context_lens=torch.tensor(layout.context_lens, dtype=torch.int32, device=device),
        block_tables=torch.tensor(tables, dtype=torch.int32, device=device),
        positions=layout.positions.to(device, torch.int32),
        slots=layout.slot_mapping.to(device),
        num_decode=layout.num_decode,
        num_tokens=starts[-1],
    )
