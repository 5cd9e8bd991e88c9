"""Every operation in plain torch: the definition that other implementations are tested against.

It also runs CPU machines, so it is written for them: few, large calls, one product per weight over
all rows of a pass, float32 or bfloat16 weights by what the processor multiplies quickly.
"""

import copy
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

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
from kernels.cuda.link_probe import host_gb_s
from kernels.quant.dequant import dequantize
from kernels.quant.formats import GGMLType, KVFormat
from kernels.reference import paged_kv
from kernels.reference.attention import AttentionPlan, attend, plan_attention
from kernels.reference.dense_linear import DenseLinear, apply_dense, make_dense
from kernels.reference.experts import Experts, apply_experts, make_experts
from kernels.reference.gate import activate, gate, scaled
from kernels.reference.rotations import rotation_table, temperatures
from kernels.reference.weight_probe import FEW_AND_MANY_ROWS, fastest_weight_dtype

WEIGHT_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_KV_CHOICES: dict[torch.dtype, tuple[KVFormat, ...]] = {
    torch.float32: ("float32", "float16", "q8_0"),
    torch.bfloat16: ("bfloat16", "q8_0"),
}
"""By the weights' type, where no option names one."""

DENSE_EMBEDDING_BYTES = 64 << 20
"""Embeddings up to this size are kept as float32; larger ones stay quantised, rows read on demand."""


@dataclass(slots=True)
class Embedding:
    """Rows either dense float32 [vocab, hidden] or as the file's bytes [vocab, row_bytes]."""

    dense: Tensor | None
    raw: Tensor | None
    type: GGMLType
    hidden: int


@dataclass(frozen=True, slots=True)
class NormWeight:
    """A norm's weight times sqrt(dim), and the length that eps adds to a vector."""

    scaled: Tensor
    eps_length: Tensor
    bias: Tensor | None = None
    centred: bool = False
    """Whether a vector's mean is taken off before."""


@dataclass(slots=True)
class PreparedPass:
    """What all layers of a group share in one pass."""

    kv: paged_kv.PagedKV
    kinds: Sequence[Rotation]
    layout: PassLayout
    tables: dict[int, Tensor] = field(default_factory=dict)
    """By kind of rotation."""
    plans: dict[int, AttentionPlan] = field(default_factory=dict)
    """By window."""

    def rotation(self, kind: int) -> Tensor:
        """complex64 [T, 1, head_dim / 2]: cos + i·sin, scaled; 1 where a pair does not rotate.

        Made in float64: float32 angles lose a third of a digit per 1,000 positions.
        """
        if kind not in self.tables:
            positions = self.layout.positions.to(torch.float64)[:, None]
            self.tables[kind] = rotation_table(self.kinds[kind], positions, self.kv.head_dim // 2)
        return self.tables[kind]


@dataclass(frozen=True, slots=True)
class GateLinear:
    """[gate; up] and what the gate goes through."""

    linear: DenseLinear
    activation: Activation
    gated: bool
    """Or rows of up alone."""
    activation_scale: float


class TorchOperations:
    """`kernels.contract.Operations` in plain torch, for any device."""

    rope_pairing: Pairing = "adjacent"
    max_prefill_tokens = 512
    tick_extra_ms = 0.0
    few_tokens: int | None = None
    verify_rows = 8
    runs_ahead = False
    by_torch: tuple[str, ...] = ()
    probed_rows: tuple[int, ...] = FEW_AND_MANY_ROWS
    """Rows by which the type of products is chosen."""

    def __init__(self, device: torch.device, weight_dtype: str, kv_dtype: str, block_size: int) -> None:
        """Raise ValueError naming an option that is not one of its choices."""
        self.device = device
        if weight_dtype not in ("auto", *WEIGHT_DTYPES):
            raise ValueError(f"weight_dtype: '{weight_dtype}' is not one of auto, {', '.join(WEIGHT_DTYPES)}")
        self.weight_dtype = WEIGHT_DTYPES.get(weight_dtype) or fastest_weight_dtype(device, self.probed_rows)
        if kv_dtype not in ("auto", *paged_kv.KV_DTYPES):
            raise ValueError(f"kv_dtype: '{kv_dtype}' is not one of auto, {', '.join(paged_kv.KV_DTYPES)}")
        named = [one for one in paged_kv.KV_DTYPES if one == kv_dtype]
        self.kv_choices = tuple(named) or _KV_CHOICES[self.weight_dtype]
        self.kv_format: KVFormat = self.kv_choices[0]
        self.block_size = block_size
        self.weight_format = str(self.weight_dtype).removeprefix("torch.")
        self.weight_itemsize = self.weight_dtype.itemsize
        self.name = f"torch {str(self.weight_dtype).removeprefix('torch.')}"
        self.fallbacks: list[str] = []
        self.host_gb_s: float | None = None

    @property
    def _attention_dtype(self) -> torch.dtype:
        narrow = self.weight_dtype is torch.bfloat16 and self.kv_format in _KV_CHOICES[torch.bfloat16]
        return torch.bfloat16 if narrow else torch.float32

    def with_kv(self, kv_format: KVFormat) -> Self:
        """A copy."""
        made = copy.copy(self)
        made.kv_format = kv_format
        return made

    def kv_block_bytes(self, num_layers: int, kv_heads: int, head_dim: int) -> int:
        """Keys and values of one block."""
        slots = 2 * num_layers * kv_heads * self.block_size
        return slots * paged_kv.slot_nbytes(head_dim, self.kv_format)

    def check_attention(self, q_heads: int, kv_heads: int, head_dim: int) -> None:
        """Any."""

    def loading(self) -> AbstractContextManager[None]:
        """Nothing to hold."""
        self.host_gb_s = host_gb_s(self.device)
        return nullcontext()

    def make_linear(self, parts: Sequence[QuantizedMatrix], bias: Tensor | None) -> DenseLinear:
        """Dequantise, stack and pack."""
        weight = torch.empty(
            sum(part.shape[0] for part in parts),
            parts[0].shape[1],
            dtype=self.weight_dtype,
            device=self.device,
        )
        row = 0
        for part in parts:
            rows = dequantize(part.raw, part.type, part.shape)
            if part.row_order is not None:
                rows = rows[part.row_order]
            weight[row : row + part.shape[0]] = rows
            row += part.shape[0]
        return make_dense(weight, None if bias is None else self.make_vector(bias))

    def make_gate(
        self,
        parts: Sequence[QuantizedMatrix],
        bias: Tensor | None,
        activation: Activation = "silu",
        activation_scale: float = 1.0,
    ) -> GateLinear:
        """Rows as they come."""
        return GateLinear(self.make_linear(parts, bias), activation, len(parts) > 1, activation_scale)

    def make_embedding(self, matrix: QuantizedMatrix, _tied: DenseLinear | None = None, /) -> Embedding:
        """Dense when small, else the file's own bytes; packed weights cannot be gathered."""
        vocab, hidden = matrix.shape
        if vocab * hidden * 4 <= DENSE_EMBEDDING_BYTES:
            dense = dequantize(matrix.raw, matrix.type, matrix.shape).to(self.device)
            return Embedding(dense, None, matrix.type, hidden)
        raw = matrix.raw.view(vocab, -1)
        return Embedding(None, raw if self.device.type == "cpu" else raw.to(self.device), matrix.type, hidden)

    def make_vector(self, values: Tensor) -> Tensor:
        """float32 on the device."""
        return values.to(self.device, torch.float32).contiguous()

    def make_norm(
        self, weight: Tensor, eps: float, bias: Tensor | None = None, centred: bool = False
    ) -> NormWeight:
        """Fold the division by sqrt(dim) into the weight: three large calls instead of six."""
        dim = weight.shape[-1]
        scaled = self.make_vector(weight) * math.sqrt(dim)
        length = torch.tensor(math.sqrt(dim * eps), device=self.device)
        return NormWeight(scaled, length, None if bias is None else self.make_vector(bias), centred)

    def make_kv(self, num_layers: int, num_blocks: int, kv_heads: int, head_dim: int) -> paged_kv.PagedKV:
        """Reserve the paged KV of one group."""
        return paged_kv.make_paged_kv(
            num_layers, num_blocks, kv_heads, head_dim, self.block_size, self.kv_format, self.device
        )

    def weight_bytes(
        self, handle: DenseLinear | GateLinear | Experts | Embedding | NormWeight | Tensor
    ) -> int:
        """Memory held by a handle."""
        if isinstance(handle, GateLinear):
            handle = handle.linear
        if isinstance(handle, Experts | DenseLinear):
            return handle.nbytes
        if isinstance(handle, Embedding):
            return sum(held.nbytes for held in (handle.dense, handle.raw) if held is not None)
        if isinstance(handle, NormWeight):
            return handle.scaled.nbytes
        return handle.nbytes

    def prepare(
        self, layouts: Sequence[PassLayout], kv: Sequence[paged_kv.PagedKV], rotations: Sequence[Rotation]
    ) -> list[PreparedPass]:
        """By group."""
        return [self._prepare(layout, pages, rotations) for layout, pages in zip(layouts, kv, strict=True)]

    def _prepare(
        self, layout: PassLayout, kv: paged_kv.PagedKV, rotations: Sequence[Rotation]
    ) -> PreparedPass:
        return PreparedPass(kv, rotations, layout)

    def embed(self, ids: Tensor, handle: Embedding, norm: NormWeight | None = None) -> Tensor:
        """Gather rows."""
        if handle.dense is not None:
            rows = handle.dense[ids]
        else:
            assert handle.raw is not None
            rows = dequantize(handle.raw[ids].reshape(-1), handle.type, (ids.shape[0], handle.hidden))
        return rows if norm is None else rms_norm(rows, norm)

    def add_norm(
        self,
        residual: Tensor,
        delta: Tensor | None,
        norm: NormWeight | None,
        rows: Tensor | None = None,
        branch: Branch = PLAIN_BRANCH,
        reader: Any | None = None,  # noqa: ARG002
    ) -> Tensor:
        """Add in place, then norm all rows or the chosen ones."""
        if delta is not None:
            if branch.activation_scale != 1.0:
                delta = delta.to(torch.float32) / branch.activation_scale
            if branch.norm is not None:
                delta = rms_norm(delta.to(torch.float32), branch.norm)
            residual.add_(delta, alpha=branch.scale)
            if branch.sum_scale != 1.0:
                residual.mul_(branch.sum_scale)
        x = residual if rows is None else residual[rows]
        return x if norm is None else rms_norm(x, norm)

    def linear(self, x: Tensor, handle: DenseLinear) -> Tensor:
        """One product over all rows."""
        return apply_dense(x, handle)

    def norm_columns(self, output: Tensor, norms: Sequence[NormWeight]) -> Tensor:
        """In place where it is float32."""
        normed, start = output.to(torch.float32), 0
        for norm in norms:
            part = normed[:, start : start + norm.scaled.shape[0]]
            start += part.copy_(rms_norm(part, norm)).shape[1]
        return normed

    def gated_linear(self, x: Tensor, handle: GateLinear) -> Tensor:
        """A gated unit (Shazeer 2020) over one product of both halves."""
        product, open_gate = apply_dense(x, handle.linear), gate if handle.gated else activate
        return scaled(open_gate(product, handle.activation), handle.activation_scale)

    def make_experts(
        self,
        matrices: ExpertMatrices,
        routing: Routing,
        activation: Activation,
        activation_scale: float = 1.0,
    ) -> Experts:
        """As the file has them."""
        return make_experts(matrices, routing, activation, self.device, activation_scale)

    def experts(self, x: Tensor, handle: Experts, routed: Tensor | None = None) -> Tensor:
        """Expert by expert, those in use alone."""
        return apply_experts(x.to(torch.float32), handle, routed)

    def add_outputs(self, first: Tensor, second: Tensor, gate: DenseLinear | None, x: Tensor) -> Tensor:
        """In place of the first."""
        if gate is not None:
            second = second * torch.sigmoid(self.linear(x, gate).to(torch.float32))
        return first.add_(second)

    def attend(
        self, qkv: Tensor, prepared: Sequence[PreparedPass], layer: int, attention: LayerAttention
    ) -> Tensor:
        """Planned at the first layer of a kind."""
        own = prepared[attention.group]
        kv, window = own.kv, attention.window
        q = self._rope_and_store(qkv, own, layer, attention).to(self._attention_dtype)
        if window not in own.plans:
            own.plans[window] = plan_attention(own.layout, kv.block_size, q, window)
        return attend(
            q, kv.layers[layer], kv.kv_heads, own.plans[window], attention.scale, attention.softcap,
            attention.sinks,
        )  # fmt: skip

    def sigmoid_gate(self, x: Tensor, gate: Tensor) -> Tensor:
        """In float32."""
        return x.to(torch.float32) * torch.sigmoid(gate.to(torch.float32))

    def soft_cap(self, output: Tensor, cap: float) -> Tensor:
        """In float32."""
        return output.to(torch.float32).div(cap).tanh_().mul_(cap)

    def values(self, x: Tensor) -> Tensor:
        """Themselves."""
        return x

    def as_output(self, values: Tensor) -> Tensor:
        """Themselves."""
        return values

    def logits(self, output: Tensor) -> Tensor:
        """Widened."""
        return output.to(torch.float32)

    def _rope_and_store(
        self, qkv: Tensor, prepared: PreparedPass, layer: int, attention: LayerAttention
    ) -> Tensor:
        """Rotate in place as complex numbers, write k and v with one scatter; returns q [T, heads, dim]."""
        kv = prepared.kv
        qkv = qkv.to(torch.float32)
        tokens, dim = qkv.shape[0], kv.head_dim
        heads = qkv.view(tokens, -1, dim)
        q_heads = heads.shape[1] - 2 * kv.kv_heads
        rotated = heads[:, : q_heads + kv.kv_heads]
        norm = attention.qk_norm
        normed = heads if attention.norms_values else rotated
        if norm is not None and not attention.norm_rotated:
            normed.copy_(rms_norm(normed, norm))
        turned = torch.view_as_complex(rotated.unflatten(-1, (dim // 2, 2)))
        turned.mul_(prepared.rotation(attention.rotation))
        if norm is not None and attention.norm_rotated:
            normed.copy_(rms_norm(normed, norm))
        if attention.temperature:
            grown = attention.temperature, attention.temperature_length
            heads[:, :q_heads].mul_(temperatures(*grown, prepared.layout.positions))
        new = heads[:, q_heads:].transpose(0, 1)
        kv.layers[layer].write(prepared.layout.slot_mapping, new)
        return heads[:, :q_heads]

    def recorder(self) -> Any | None:
        """None: torch's own calls are no launches."""
        return None

    def block_pieces(self, kv: paged_kv.PagedKV, block: int) -> list[Tensor]:
        """Of each layer values, then q8_0's scales."""
        slots = slice(block * kv.block_size, (block + 1) * kv.block_size)
        planes = [plane for layer in kv.layers for plane in (layer.values, layer.scales)]
        return [plane[:, slots] for plane in planes if plane is not None]


def rms_norm(x: Tensor, norm: NormWeight) -> Tensor:
    """RMSNorm (Zhang and Sennrich 2019): x / sqrt(|x|² + dim · eps) · sqrt(dim) · weight.

    LayerNorm (Ba et al. 2016) is the same of x less its mean.
    """
    if norm.centred:
        x = x - x.mean(-1, keepdim=True)
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    normed = torch.div(x, torch.hypot(length, norm.eps_length)).mul_(norm.scaled)
    return normed if norm.bias is None else normed.add_(norm.bias)
