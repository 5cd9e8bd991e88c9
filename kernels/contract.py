"""The table of operations: what a device can be asked to compute.

`Operations` is the only thing the model runner knows of a device. Every implementation computes
what the plain torch one (`kernels.reference.operations`) defines, under the same signatures and tests.

Shapes: T tokens of one packed pass, B sequences in it, R rows to sample. One pass packs the tokens
of all its sequences back to back without padding, single-token (decode) sequences first.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from kernels.quant.formats import GGMLType, KVFormat
from kernels.quant.stored import StoredBytes, bytes_of

Pairing = Literal["adjacent", "halves"]
Activation = Literal["silu", "gelu", "relu2", "swiglu_oai"]
"""Of a feed-forward part; "gelu" is its tanh form, "relu2" the square of what is above 0.

"swiglu_oai" is gate · σ(1.702 · gate) · (up + 1) with gate held to 7 and up to ±7: it needs both.
"""


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
    """Which tokens of one packed pass belong to which sequence, and where a group of layers has their KV.

    A group's layers have keys and values of one shape and keep them for equally long; the layouts of a
    pass for its groups differ in block tables and slots alone.

    `context_lens[i]` counts sequence i's tokens up to and including its last one of this pass;
    its new tokens are the last `query_lens[i]` of them. The first `num_decode` sequences decode:
    they have one new token each, and where drafts are verified (`verify_rows`) a few behind it.
    `block_tables[i]` covers the whole context; blocks that the group's layers see no more may be 0.
    """

    query_lens: list[int]
    context_lens: list[int]
    block_tables: list[list[int]]
    num_decode: int
    positions: Tensor
    """int64 [T], position of each token in its sequence."""
    slot_mapping: Tensor
    """int64 [T], KV slot (block * block_size + offset) of each token."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """The rotary position embedding of one kind of layer."""

    inv_freq: Tensor
    """float64 [R]: pair i rotates by position · inv_freq[i]; the leading 2 R values of a head rotate."""
    magnitude: float
    """Multiplies the rotated values (YaRN's attention factor)."""
    pairing: Pairing
    """Which values rotate together: (2i, 2i + 1) or (i, i + R)."""


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """What sets the attention of one layer apart."""

    rotation: int
    """Number among those that the pass was prepared with."""
    scale: float
    """Multiplies q·k."""
    group: int = 0
    """Number of its group among those that the pass was prepared with."""
    window: int = 0
    """A token sees the last `window` tokens, itself included; 0 sees all."""
    softcap: float = 0.0
    """Scores become softcap · tanh(score / softcap); 0 leaves them."""
    sinks: Tensor | None = None
    """float32 [q_heads] on the device: scores that take weight and give no value."""
    qk_norm: Any | None = None
    """An RMS norm's handle for [q_heads + kv_heads, head_dim]."""
    norms_values: bool = False
    """Whether that norm has kv_heads rows more, for values."""
    norm_rotated: bool = False
    """Whether that norm follows the rotation, and not the rotation it."""
    temperature: float = 0.0
    """Queries are multiplied by 1 + temperature · ln(1 + ⌊position / temperature_length⌋)."""
    temperature_length: int = 1
    output: Any | None = None
    """The handle of the linear that reads the result, where nothing comes between."""


@dataclass(frozen=True, slots=True)
class Routing:
    """Which experts a token uses, and how they are weighed (always in float32)."""

    used: int
    gating: Literal["softmax", "sigmoid", "softmax_selected"]
    """How logits become probabilities; "softmax_selected" is over the selected alone."""
    normalised: bool
    """Whether the weights of the selected are divided by their sum."""
    scale: float
    """Multiplies the weights."""
    groups: int = 1
    """Equal parts of the experts of which `groups_used` are open to a token: those with the largest sums of
    their two best probabilities."""
    groups_used: int = 1


@dataclass(frozen=True, slots=True)
class ExpertMatrices:
    """The experts of one layer as their file holds them, stacked by rows, expert after expert."""

    count: int
    router: QuantizedMatrix
    """[count, hidden]."""
    selection_bias: Tensor | None
    """float32 [count], added to the probabilities for the selection alone."""
    gate_up: Sequence[QuantizedMatrix]
    """Gate and up, each [count * size, hidden], or both in one [count * 2 size, hidden], gate rows first."""
    down: QuantizedMatrix
    """[count * hidden, size]."""
    router_bias: Tensor | None = None
    """float32 [count], added to the logits."""
    gate_up_bias: Tensor | None = None
    """float32 [count, 2, size], gate and up."""
    down_bias: Tensor | None = None
    """float32 [count, hidden]."""
    factors: Tensor | None = None
    """float32 [count], multiplied with the weights of the selected."""


@dataclass(frozen=True, slots=True)
class Branch:
    """How what a branch computed joins the residual stream."""

    norm: Any | None = None
    """The handle of an RMS norm over it."""
    scale: float = 1.0
    """Multiplies it, after the norm."""
    sum_scale: float = 1.0
    """Multiplies the residual stream once the branch has joined it."""
    activation_scale: float = 1.0
    """That of the gated linear or the experts that it comes from: it is divided by this before all else."""


PLAIN_BRANCH = Branch()


class RecordedPass(Protocol):
    """A pass that can be run again with less work of the host."""

    logits: Tensor
    """float32 [R, vocab] of the pass, until another of the same model is recorded or run again."""

    def run(self, residual: Tensor, layouts: Sequence[PassLayout], rows: Tensor | None) -> Tensor | None:
        """Logits of another with as many of each kind of tokens and rows; None for contexts too long."""
        ...


class Recorder(Protocol):
    """Of one model's passes."""

    def record(
        self,
        prepare: Callable[[Sequence[PassLayout]], Any],
        layouts: Sequence[PassLayout],
        residual: Tensor,
        rows: Tensor | None,
        compute: Callable[[Tensor, Any, Tensor | None], Tensor],
    ) -> RecordedPass | None:
        """Run and record a pass; None where that cannot be, and it is still to be run.

        rows: int64 [R] with logits, None for all. compute: from the residual stream, which it changes.
        """
        ...


class Operations(Protocol):
    """What a device computes. Weight and KV handles are opaque to callers."""

    name: str
    """For people, e.g. "torch float32"."""
    device: torch.device
    rope_pairing: Pairing
    """Order of head dimensions that `attend` expects; the loader permutes rows to it."""
    weight_format: str
    """For people: how linear weights are held, e.g. "float32" or "as in the file"."""
    weight_itemsize: int
    """Bytes of a weight of a type that is not held as in the file."""
    kv_format: KVFormat
    """Element type of the KV."""
    kv_choices: tuple[KVFormat, ...]
    """Those that `with_kv` may be asked for, the best first; one where an option names it."""
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
    def by_torch(self) -> tuple[str, ...]:
        """What torch computes in place of this device's kernels, why, and what it takes, for people.

        Of the model that they were made for (`with_kv`); it may grow.
        """
        ...

    @property
    def few_tokens(self) -> int | None:
        """Passes of up to so many tokens are quick, whatever they hold; in larger ones decode rows and
        chunks are quicker apart. None where passes of all sizes are alike.
        """
        ...

    def with_kv(self, kv_format: KVFormat) -> "Operations":
        """These operations for a model whose KV is of that type."""
        ...

    def kv_block_bytes(self, num_layers: int, kv_heads: int, head_dim: int) -> int:
        """Memory of one KV block in all layers of a group."""
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

    def make_gate(
        self,
        parts: Sequence[QuantizedMatrix],
        bias: Tensor | None,
        activation: Activation = "silu",
        activation_scale: float = 1.0,
    ) -> Any:
        """The same for [gate; up], a handle of `gated_linear`, or for [up] alone.

        activation_scale: a power of two that multiplies the results, which may be rounded to float16 and
        end at 65,504. Who computes with them divides by it in `Branch`, and scales a bias that comes between.
        """
        ...

    def make_embedding(self, matrix: QuantizedMatrix, tied: Any | None = None, /) -> Any:
        """A row-gather handle; `tied`: the linear that was made of the same matrix."""
        ...

    def make_norm(self, weight: Tensor, eps: float, bias: Tensor | None = None, centred: bool = False) -> Any:
        """A norm's handle from its weight [dim] or [heads, dim]: RMS, or LayerNorm where it is centred."""
        ...

    def make_kv(self, num_layers: int, num_blocks: int, kv_heads: int, head_dim: int) -> Any:
        """The paged KV of one group of layers; block 0 is scratch."""
        ...

    def weight_bytes(self, handle: Any) -> int:
        """Memory held by a weight handle."""
        ...

    def prepare(self, layouts: Sequence[PassLayout], kv: Sequence[Any], rotations: Sequence[Rotation]) -> Any:
        """What all layers of one pass share: rotation tables, attention plans; a layout and KV a group."""
        ...

    def embed(self, ids: Tensor, handle: Any, norm: Any | None = None) -> Tensor:
        """ids int64 [T] → float32 [T, hidden], behind an RMS norm where there is one."""
        ...

    def add_norm(
        self,
        residual: Tensor,
        delta: Any | None,
        norm: Any | None,
        rows: Tensor | None = None,
        branch: Branch = PLAIN_BRANCH,
        reader: Any | None = None,
    ) -> Any:
        """residual float32 [T, hidden] += delta, in place; returns its norm for `linear`.

        delta: what `linear` gave, or None; it joins as `branch` says. norm: None for the residual itself,
        of which the result may be a view: it is used up before the next call. rows: int64 [R], to norm
        these rows alone; the residual's contents are undefined afterwards. reader: the handle of
        what reads the result first: a linear may begin early for it, and experts' router may be asked here.
        """
        ...

    def linear(self, x: Any, handle: Any) -> Any:
        """x as `add_norm`, `attend` or `gated_linear` gave it → what these take, [T, out]."""
        ...

    def norm_columns(self, output: Any, norms: Sequence[Any]) -> Any:
        """What `linear` gave with an RMS norm over its first columns, another over the next, and so on.

        A norm takes as many columns as its weight has; those behind the last stay.
        """
        ...

    def gated_linear(self, x: Any, handle: Any) -> Any:
        """activation(gate) * up, where the handle's rows are [gate; up]: [T, hidden] → [T, ffn].

        Of [up] alone it is activation(up). Either is multiplied by the handle's scale.
        """
        ...

    def make_experts(
        self,
        matrices: ExpertMatrices,
        routing: Routing,
        activation: Activation,
        activation_scale: float = 1.0,
    ) -> Any:
        """A handle of `experts`, whose results are multiplied by a scale as those of `make_gate` are."""
        ...

    def experts(self, x: Any, handle: Any, routed: Any | None = None) -> Any:
        """x [T, hidden] as for `linear` → the weighed sum of the experts that each token uses.

        routed: what the router reads where that is not x, of its shape.
        An expert is down · (activation(gate · x) * (up · x)). The result is as `linear` gives it.
        """
        ...

    def add_outputs(self, first: Any, second: Any, gate: Any | None, x: Any) -> Any:
        """first + second · σ(gate · x) of what `linear` or `experts` gave; without a gate the plain sum.

        gate: a linear of one row.
        """
        ...

    def attend(self, qkv: Any, prepared: Any, layer: int, attention: LayerAttention) -> Any:
        """Normalise and rotate q and k, write k and v to their slots, attend causally over paged KV.

        layer: number among those of its group.

        qkv [T, (q_heads + 2 kv_heads) * head_dim] as `linear` gives it; returns [T, q_heads * head_dim]
        for `linear`.
        """
        ...

    def sigmoid_gate(self, x: Any, gate: Any) -> Any:
        """x · σ(gate) for `linear`: x as `attend` gave it, gate as `linear` did, of one shape."""
        ...

    def soft_cap(self, output: Any, cap: float) -> Any:
        """cap · tanh(x / cap) of what `linear` gave."""
        ...

    def values(self, x: Any) -> Tensor:
        """What `add_norm` gave as plain values [T, hidden] of some float type, for another device."""
        ...

    def as_output(self, values: Tensor) -> Any:
        """Values float32 [T, out], that another device computed, as `linear` would have given them."""
        ...

    def logits(self, output: Any) -> Tensor:
        """What `linear` gave with the output matrix → float32 [R, vocab]."""
        ...

    def recorder(self) -> Recorder | None:
        """What records one model's passes; None where that saves nothing."""
        ...

    def block_pieces(self, kv: Any, block: int) -> list[Tensor]:
        """Views of the memory of one KV block in all layers of a group."""
        ...
