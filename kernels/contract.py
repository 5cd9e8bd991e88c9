"""The table of operations: what a device can be asked to compute.

`Operations` is the only thing the model runner knows of a device. Every implementation computes
what the plain torch one (`kernels.reference.operations`) defines, under the same signatures and tests.

Shapes: T tokens of one packed pass, B sequences in it, R rows to sample. One pass packs the tokens
of all its sequences back to back without padding, single-token (decode) sequences first.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from kernels.quant.formats import GGMLType
from kernels.quant.stored import StoredBytes, bytes_of

Pairing = Literal["adjacent", "halves"]


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """A matrix as its file holds it, row after row.

    `row_order` int64 [rows], when given, lists the source row of every row (a lossless reordering:
    rows of a quantised matrix are independent).
    """

    stored: Tensor | StoredBytes
    """uint8 [nbytes] on the CPU, or where these are read from."""
    type: GGMLType
    shape: tuple[int, int]
    row_order: Tensor | None = None

    @property
    def raw(self) -> Tensor:
        """uint8 [nbytes] on the CPU; bytes that are stored are read each time."""
        return bytes_of(self.stored)


@dataclass(frozen=True, slots=True)
class PassLayout:
    """Which tokens of one packed pass belong to which sequence, and where their KV lives.

    `context_lens[i]` counts sequence i's tokens up to and including its last one of this pass;
    its new tokens are the last `query_lens[i]` of them. The first `num_decode` sequences decode:
    they have one new token each, and where drafts are verified (`verify_rows`) a few behind it.
    `block_tables[i]` covers the whole context.
    """

    query_lens: list[int]
    context_lens: list[int]
    block_tables: list[list[int]]
    num_decode: int
    positions: Tensor
    """int64 [T], position of each token in its sequence."""
    slot_mapping: Tensor
    """int64 [T], KV slot (block * block_size + offset) of each token."""


class Operations(Protocol):
    """What a device computes. Weight and KV handles are opaque to callers."""

    name: str
    """For people, e.g. "torch float32"."""
    device: torch.device
    rope_pairing: Pairing
    """Order of head dimensions that `attend` expects; the loader permutes rows to it."""
    weight_format: str
    """For people: how linear weights are held, e.g. "float32" or "as in the file"."""
    kv_format: str
    """For people: element type of the KV."""
    block_size: int
    """Tokens of a KV block."""
    max_prefill_tokens: int
    """Prompt tokens of one pass that serve this device best while nobody waits."""
    tick_extra_ms: float
    """How much longer than one without prompts a tick may always be while answers run."""
    verify_rows: int
    """Most tokens of a pass of decode rows with drafts behind them; 0: it can have none."""
    runs_ahead: bool
    """Whether passes can be captured as graphs and queued ahead of their results."""
    fallbacks: list[str]
    host_gb_s: float | None
    """Speed of copies between pinned host memory and this device, in its slower direction; None where
    they are one, and before the first model is loaded."""

    @property
    def few_tokens(self) -> int | None:
        """Passes of up to so many tokens are quick, whatever they hold; in larger ones decode rows and
        chunks are quicker apart. None where passes of all sizes are alike.
        """
        ...

    def matrix_bytes(self, type: GGMLType, shape: tuple[int, int], /) -> int:
        """Memory that `make_linear` will hold for a matrix."""
        ...

    def kv_block_bytes(self, num_layers: int, kv_heads: int, head_dim: int) -> int:
        """Memory of one KV block in all layers."""
        ...

    def check_attention(self, q_heads: int, kv_heads: int, head_dim: int) -> None:
        """Raise ValueError, saying what would help, for heads whose attention nothing here computes."""
        ...

    def loading(self) -> AbstractContextManager[None]:
        """Around the making of one model's weights; they are in place after it."""
        ...

    def make_linear(self, parts: Sequence[QuantizedMatrix], bias: Tensor | None) -> Any:
        """One weight handle from matrices of equal width, their rows stacked."""
        ...

    def make_gate(self, parts: Sequence[QuantizedMatrix], bias: Tensor | None) -> Any:
        """The same for [gate; up], a handle of `gated_linear`."""
        ...

    def make_embedding(self, matrix: QuantizedMatrix, tied: Any | None = None, /) -> Any:
        """A row-gather handle; `tied`: the linear that was made of the same matrix."""
        ...

    def make_norm(self, weight: Tensor, eps: float) -> Any:
        """An RMS norm's handle from its weight [dim] or [heads, dim]."""
        ...

    def make_kv(self, num_layers: int, num_blocks: int, kv_heads: int, head_dim: int) -> Any:
        """The paged KV of one model; block 0 is scratch."""
        ...

    def weight_bytes(self, handle: Any) -> int:
        """Memory held by a weight handle."""
        ...

    def prepare(self, layout: PassLayout, kv: Any, inv_freq: Tensor, magnitude: float) -> Any:
        """What all layers of one pass share: rotation table, attention plan."""
        ...

    def embed(self, ids: Tensor, handle: Any) -> Tensor:
        """ids int64 [T] → float32 [T, hidden]."""
        ...

    def add_norm(self, residual: Tensor, delta: Any | None, norm: Any, rows: Tensor | None = None) -> Any:
        """residual float32 [T, hidden] += delta, in place; returns its RMS norm for `linear`.

        delta: what `linear` gave, or None. rows: int64 [R], to norm these rows alone; the residual's
        contents are undefined afterwards.
        """
        ...

    def linear(self, x: Any, handle: Any) -> Any:
        """x as `add_norm`, `attend` or `gated_linear` gave it → what these take, [T, out]."""
        ...

    def gated_linear(self, x: Any, handle: Any) -> Any:
        """silu(gate) * up, where the handle's rows are [gate; up]: [T, hidden] → [T, ffn]."""
        ...

    def attend(self, qkv: Any, prepared: Any, layer: int, qk_norm: Any | None, scale: float) -> Any:
        """Normalise and rotate q and k, write k and v to their slots, attend causally over paged KV.

        qkv [T, (q_heads + 2 kv_heads) * head_dim] as `linear` gives it; qk_norm a handle for
        [q_heads + kv_heads, head_dim] or None; returns [T, q_heads * head_dim] for `linear`.
        """
        ...

    def logits(self, output: Any) -> Tensor:
        """What `linear` gave with the output matrix → float32 [R, vocab]."""
        ...

    def block_pieces(self, kv: Any, block: int) -> list[Tensor]:
        """Views of the memory of one KV block in all layers."""
        ...
