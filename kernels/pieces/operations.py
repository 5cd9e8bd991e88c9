"""The kernels of a GPU, and torch where they do not serve a model.

What no kernel serves is known before a model is loaded, by its shapes, or becomes known when a kernel
cannot be compiled or launched. From then on torch computes that operation of that model; the others stay.
"""

from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from kernels.attention.served import unserved_attention
from kernels.attention.shape import AttentionShape
from kernels.contract import PLAIN_BRANCH, Branch, LayerAttention, Operations
from kernels.cuda.activations import Activations
from kernels.cuda.errors import is_kernels
from kernels.experts.experts import TritonExperts
from kernels.linear.linear import TritonLinear
from kernels.linear.rows import MAX_ROWS
from kernels.pieces import attention as torch_attention
from kernels.pieces import plain
from kernels.pieces.experts import experts as torch_experts
from kernels.pieces.planes import gathered_rows
from kernels.pieces.table import ANSWERS, EXPERTS, PROMPTS, Pieces
from kernels.planes.layout import PlanesMatrix
from kernels.quant.formats import KVFormat
from kernels.triton_operations import (
    BLOCK_SIZE,
    TritonEmbedding,
    TritonNorm,
    TritonOperations,
    TritonPass,
    attention_shape,
    joined_branch,
)

T = TypeVar("T")


class PieceOperations(TritonOperations):
    """Of one model once `with_kv` was asked for."""

    def __init__(self, device: torch.device, kv_dtype: str, batch_independent: bool = False) -> None:
        """As `TritonOperations`; with batch_independent torch stands in for nothing."""
        super().__init__(device, kv_dtype, batch_independent)
        self.pieces = Pieces(self.device)

    def with_kv(self, kv_format: KVFormat) -> Self:
        """A copy, which kernels serve as far as is known."""
        made = super().with_kv(kv_format)
        made.pieces = Pieces(self.device)
        return made

    def check_attention(self, q_heads: int, kv_heads: int, head_dim: int) -> None:
        """Have torch compute what no kernel serves."""
        reason = unserved_attention(head_dim, self.kv_format)
        if not reason or self.batch_invariant:
            super().check_attention(q_heads, kv_heads, head_dim)
            return
        AttentionShape(q_heads, kv_heads, head_dim, BLOCK_SIZE, 1.0)
        self.pieces.add(ANSWERS, reason)
        self.pieces.add(PROMPTS, reason)

    @property
    def by_torch(self) -> tuple[str, ...]:
        """What torch computes of this model, what that takes, and why."""
        return self.pieces.sentences

    def captures(self, *, prompts: bool) -> bool:
        """Whether passes, with attention as of prompts or not, can be captured as graphs."""
        return self.pieces.captured(prompts=prompts)

    def embed(self, ids: Tensor, handle: TritonEmbedding, norm: TritonNorm | None = None) -> Tensor:
        """Rows, then their norm."""
        rows = self._serve(
            f"embedding in {_name(handle.weight)}",
            lambda: super(PieceOperations, self).embed(ids, handle),
            lambda: gathered_rows(handle.weight, ids),
        )
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
        """One kernel, which has changed nothing where it cannot be launched."""

        def by_torch() -> Activations:
            weight, eps, bias, centred = (
                (None, 0.0, None, False) if norm is None else (norm.weight, norm.eps, norm.bias, norm.centred)
            )
            joins, scale = joined_branch(branch)
            return plain.add_norm(
                residual, delta, weight, eps, rows, joins, scale, bias, centred, branch.sum_scale
            )

        kernels = super().add_norm
        return self._serve("norms", lambda: kernels(residual, delta, norm, rows, branch, reader), by_torch)

    def norm_columns(self, output: Tensor, norms: Sequence[TritonNorm]) -> Tensor:
        """Also of embeddings."""
        kernels, weights = super().norm_columns, [(norm.weight, norm.eps) for norm in norms]
        return self._serve(
            "norms", lambda: kernels(output, norms), lambda: plain.norm_columns(output, weights)
        )

    def linear(self, x: Activations, handle: TritonLinear) -> Tensor:
        """By element types and number of tokens: other kernels serve others."""
        kernels = super().linear
        return self._serve(
            f"{_products(x, handle)} plain",
            lambda: kernels(x, handle),
            lambda: plain.linear(x, handle),
        )

    def gated_linear(self, x: Activations, handle: TritonLinear) -> Activations:
        """Apart from plain products of the type: the gate is in the kernel."""
        kernels = super().gated_linear
        return self._serve(
            f"{_products(x, handle)} gated",
            lambda: kernels(x, handle),
            lambda: plain.gated_linear(x, handle),
        )

    def experts(self, x: Activations, handle: TritonExperts, routed: Activations | None = None) -> Tensor:
        """Router and products. Weights that cross over may be gone when a kernel fails: the pass with it."""
        kernels = super().experts
        return self._serve(
            EXPERTS,
            lambda: kernels(x, handle, routed),
            lambda: torch_experts(x, handle, routed),
            again=handle.between is None,
        )

    def sigmoid_gate(self, x: Activations, gate: Tensor) -> Activations:
        """One kernel."""
        kernels = super().sigmoid_gate
        return self._serve("gates", lambda: kernels(x, gate), lambda: plain.sigmoid_gate(x, gate))

    def attend(
        self, qkv: Tensor, prepared: Sequence[TritonPass], layer: int, attention: LayerAttention
    ) -> Activations:
        """Apart where one kernel writes and reads. What a failed one left in pages is written again."""
        tables, kernels = prepared[attention.group].tables, super().attend
        answers = tables.num_tokens == tables.num_decode and not tables.shares_kv
        return self._serve(
            ANSWERS if answers else PROMPTS,
            lambda: kernels(qkv, prepared, layer, attention),
            lambda: _attend(qkv, prepared[attention.group], layer, attention),
        )

    def _serve(
        self, operation: str, kernels: Callable[[], T], by_torch: Callable[[], T], *, again: bool = True
    ) -> T:
        """again: whether torch can compute now what a kernel has failed to."""
        if operation not in self.pieces:
            try:
                return kernels()
            except Exception as error:
                if self.batch_invariant or _capturing(self.device) or not is_kernels(error):
                    raise
                self.pieces.add_failed(operation, error)
                if not again:
                    raise
        return self.pieces.run(operation, by_torch)


def runs_singly(ops: Operations, error: Exception) -> bool:
    """Have passes run one by one, with torch choosing their tokens: whether these operations can.

    error: of a kernel that is none of an operation's.
    """
    if not isinstance(ops, PieceOperations) or ops.batch_invariant:
        return False
    ops.pieces.add_failed("the choice of tokens, pass by pass", error)
    ops.runs_ahead = False
    return True


def _attend(qkv: Tensor, own: TritonPass, layer: int, attention: LayerAttention) -> Activations:
    kv, tables = own.kv.layer(layer), own.tables
    shape = attention_shape(qkv, kv, attention)
    norm: TritonNorm | None = attention.qk_norm
    weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
    q = torch_attention.rope_append(qkv, tables, kv, shape, own.rotations[attention.rotation], weight, eps)
    return plain.activations(torch_attention.attention(q, tables, kv, shape, attention.sinks))


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _products(x: Activations, handle: TritonLinear) -> str:
    kinds = sorted({_name(segment.weight) for segment in handle.segments})
    return f"products with {', '.join(kinds)}|{'few' if len(x.values) <= MAX_ROWS else 'many'} tokens"


def _name(weight: PlanesMatrix | Tensor) -> str:
    """Of its element type, as people know it from files."""
    if isinstance(weight, PlanesMatrix):
        return weight.type.name
    return {torch.float16: "F16", torch.bfloat16: "BF16"}.get(weight.dtype, "F32")
