"""From a file's tensors to the weight handles of one decoder.

Every tensor that a decoder needs is checked (`engine.model.tensors`) before any is converted.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engine.gguf.file import GGUFFile
from engine.model.layer_weights import (
    FeedForward,
    LayerMatrices,
    LayerWeights,
    ModelWeights,
    NormsOfExperts,
    handles,
)
from engine.model.rope import inverse_frequencies
from engine.model.spec import AttentionSpec, ExpertsSpec, LayerSpec, ModelConfig, QKNorm, RopeConfig
from engine.model.tensors import Rows, check_tensors, expert_rows, gate_rows, qkv_rows, shared_rows
from kernels.contract import (
    Branch,
    ExpertMatrices,
    LayerAttention,
    Operations,
    Pairing,
    QuantizedMatrix,
    Rotation,
    Routing,
)
from kernels.quant.dequant import as_tensor, dequantize

_BY_HEAD = (QKNorm.HEADS, QKNorm.ROTATED_HEADS)

Progress = Callable[[float, str], None]


def load_weights(
    file: GGUFFile,
    config: ModelConfig,
    ops: Operations,
    progress: Progress,
    settle: Callable[[object], None] | None = None,
) -> ModelWeights:
    """Convert a file's tensors; raises `ModelFileError` or `UnsupportedModelError` naming a tensor.

    progress: called with the fraction done and what is being read; settle: with the handles of each part
    as soon as it is made.
    """
    check_tensors(file, config)
    with ops.loading():
        return _load(file, config, ops, progress, settle or (lambda _handles: None))


def _load(
    file: GGUFFile,
    config: ModelConfig,
    ops: Operations,
    progress: Progress,
    settle: Callable[[object], None],
) -> ModelWeights:
    loader = WeightLoader(file, config, ops)
    layers = []
    for index, layer in enumerate(config.layers):
        progress(index / (config.num_layers + 1), f"layer {index + 1} of {config.num_layers}")
        layers.append(loader.layer(f"blk.{index}", layer))
        settle(layers[-1])
    progress(config.num_layers / (config.num_layers + 1), "output")
    head = loader.head()
    weights = ModelWeights(
        embedding=loader.embedding(head),
        embedding_norm=loader.embedding_norm(),
        layers=layers,
        output_norm=loader.output_norm(),
        head=head,
        rotations=loader.rotations(),
    )
    settle([weights.head, weights.embedding])
    weights.nbytes = sum(ops.weight_bytes(handle) for handle in handles(weights))
    return weights


def head_row_order(config: ModelConfig, attention: AttentionSpec, heads: int, target: str) -> Tensor | None:
    """Source rows that bring q or k heads from the file's rope pairing to the target's.

    Returns int64 [heads * head_dim], or None when the orders are the same.
    """
    if attention.rope is None or config.pairing == target:
        return None
    dims = attention.rope.dims
    half = dims // 2
    if target == "adjacent":
        within = torch.stack([torch.arange(half), torch.arange(half) + half], dim=1).flatten()
    else:
        within = torch.cat([torch.arange(half) * 2, torch.arange(half) * 2 + 1])
    within = torch.cat([within, torch.arange(dims, attention.head_dim)])
    return (torch.arange(heads)[:, None] * attention.head_dim + within).flatten()


class WeightLoader:
    """Reads one file's tensors for one decoder."""

    def __init__(
        self, file: GGUFFile, config: ModelConfig, ops: Operations, pairing: Pairing | None = None
    ) -> None:
        """pairing: order of head dimensions, where it is not the operations' own."""
        self.file = file
        self.config = config
        self.ops = ops
        self.pairing = pairing or ops.rope_pairing

    def head(self) -> Any:
        """The output matrix: that of the embedding where the file has none of its own."""
        rows = Rows("token_embd" if self.tied else "output", self.config.vocab_size)
        return self._linear([rows], self.config.hidden_size)

    def embedding(self, head: Any | None) -> Any:
        """head: of the same operations, whose memory it shares if it is the same matrix."""
        rows = Rows("token_embd", self.config.vocab_size)
        matrix = self._matrix(rows, self.config.hidden_size)
        return self.ops.make_embedding(matrix, head if self.tied else None)

    @property
    def tied(self) -> bool:
        """Whether the output matrix is the embedding."""
        return "output.weight" not in self.file.tensors

    def output_norm(self) -> Any:
        """Before the output matrix."""
        return self._norm("output_norm", self.config.logit_scale)

    def rotations(self) -> list[Rotation]:
        """Of each kind of layer."""
        return [self._rotation(rope) for rope in self.config.ropes]

    def matrices(self, prefix: str, layer: LayerSpec, experts: Any | None = None) -> LayerMatrices:
        """experts: their handle, where they are made already."""
        attention, hidden = layer.attention, self.config.hidden_size
        orders = [*self._orders(attention), None]
        return LayerMatrices(
            qkv=self._linear(qkv_rows(prefix, layer, self.file.tensors), hidden, orders),
            attn_gate=self._attention_gate(prefix, attention),
            attn_output=self._linear([Rows(f"{prefix}.attn_output", hidden)], attention.q_size),
            ffn=self._feed_forward(prefix, layer),
            experts=experts or self.experts(prefix, layer),
        )

    def _orders(self, attention: AttentionSpec) -> list[Tensor | None]:
        """Of the rows of q and k."""
        return [
            head_row_order(self.config, attention, heads, self.pairing)
            for heads in (attention.heads, attention.kv_heads)
        ]

    def layer(self, prefix: str, layer: LayerSpec, matrices: LayerMatrices | None = None) -> LayerWeights:
        """matrices: where they are made already."""
        attention, orders = layer.attention, self._orders(layer.attention)
        own = matrices or self.matrices(prefix, layer)
        return LayerWeights(
            attn_norm=self._norm_before(prefix, layer.attn_norm),
            qkv=own.qkv,
            all_heads_norms=self._all_heads_norms(prefix, attention, orders),
            attention=self._attention(prefix, attention, orders, own),
            attn_gate=own.attn_gate,
            attn_output=own.attn_output,
            attn_branch=self._branch(prefix, layer, layer.attn_post_norm, 1.0),
            ffn_norm=self._norm_before(prefix, layer.ffn_norm),
            ffn=own.ffn,
            experts=own.experts,
            expert_norms=self._expert_norms(prefix, layer),
            shared_gate=self._shared_gate(prefix, layer),
            ffn_branch=replace(
                self._branch(
                    prefix, layer, layer.ffn_post_norm, 1.0 if layer.expert_norms else layer.activation_scale
                ),
                sum_scale=self._output_scale(prefix, layer),
            ),
        )

    def _attention(
        self, prefix: str, attention: AttentionSpec, orders: list[Tensor | None], own: LayerMatrices
    ) -> LayerAttention:
        return LayerAttention(
            rotation=self.config.ropes.index(attention.rope),
            scale=attention.scale,
            group=[group.shape for group in self.config.kv_groups].index(attention.kv_shape),
            window=attention.window,
            softcap=attention.softcap,
            sinks=self._vector(f"{prefix}.attn_sinks.weight").to(self.ops.device)
            if attention.sinks
            else None,
            qk_norm=self._qk_norm(prefix, attention, orders) if attention.qk_norm in _BY_HEAD else None,
            norms_values=attention.value_norm,
            norm_rotated=attention.qk_norm is QKNorm.ROTATED_HEADS,
            temperature=attention.temperature,
            temperature_length=attention.temperature_length,
            output=own.attn_output if own.attn_gate is None else None,
        )

    def _qk_norm(self, prefix: str, attention: AttentionSpec, orders: list[Tensor | None]) -> Any:
        rows = []
        for part, heads, order in zip("qk", (attention.heads, attention.kv_heads), orders, strict=True):
            repeated = self._vector(f"{prefix}.attn_{part}_norm.weight").repeat(heads)
            repeated = repeated if order is None else repeated[order]
            rows.append(repeated.view(heads, attention.head_dim))
        if attention.value_norm:
            rows.append(torch.ones(attention.kv_heads, attention.head_dim))
        return self.ops.make_norm(torch.cat(rows), self.config.norm_eps)

    def _attention_gate(self, prefix: str, attention: AttentionSpec) -> Any | None:
        if not attention.gated:
            return None
        return self._linear([Rows(f"{prefix}.attn_gate", attention.q_size)], self.config.hidden_size)

    def _all_heads_norms(
        self, prefix: str, attention: AttentionSpec, orders: list[Tensor | None]
    ) -> list[Any]:
        if attention.qk_norm is not QKNorm.ALL_HEADS:
            return []
        weights = [self._vector(f"{prefix}.attn_{part}_norm.weight") for part in "qk"]
        return [
            self.ops.make_norm(weight if order is None else weight[order], self.config.norm_eps)
            for weight, order in zip(weights, orders, strict=True)
        ]

    def _feed_forward(self, prefix: str, layer: LayerSpec) -> FeedForward | None:
        """The layer's own, or its shared expert."""
        gate, down, size = gate_rows(prefix, layer, self.file.tensors), "ffn_down", layer.ffn_size
        if layer.experts is not None and not size:
            size = layer.experts.shared_size
            gate, down = shared_rows(prefix, layer.experts), "ffn_down_shexp"
        if not size:
            return None
        hidden, scale = self.config.hidden_size, layer.activation_scale
        matrices, bias = self._stacked([Rows(f"{prefix}.{down}", hidden)], size)
        return FeedForward(
            self.ops.make_gate(*self._stacked(gate, hidden), layer.activation.value, scale),
            self.ops.make_linear(matrices, None if bias is None else bias * scale),
        )

    def experts(self, prefix: str, layer: LayerSpec) -> Any | None:
        """Of a layer that has them."""
        experts = layer.experts
        if experts is None:
            return None
        hidden, names = self.config.hidden_size, self.file.tensors
        gate_up = list(dict.fromkeys(rows.name for rows in expert_rows(prefix, experts, names)))
        both = [self._optional_vector(f"{name}.bias") for name in gate_up]
        biased = any(bias is not None for bias in both)
        matrices = ExpertMatrices(
            count=experts.count,
            router=self._matrix(Rows(f"{prefix}.ffn_gate_inp", experts.count), hidden),
            selection_bias=self._optional_vector(f"{prefix}.exp_probs_b.bias"),
            gate_up=[self._flat(name) for name in gate_up],
            down=self._flat(f"{prefix}.ffn_down_exps"),
            router_bias=self._optional_vector(f"{prefix}.ffn_gate_inp.bias"),
            gate_up_bias=self._expert_biases(both, experts) if biased else None,
            down_bias=self._optional_vector(f"{prefix}.ffn_down_exps.bias"),
            factors=self._optional_vector(f"{prefix}.ffn_down_exps.scale"),
        )
        routing = Routing(
            experts.used, experts.gating.value, experts.normalised, experts.scale, experts.groups,
            experts.groups_used,
        )  # fmt: skip
        return self.ops.make_experts(matrices, routing, layer.activation.value, layer.activation_scale)

    def _expert_norms(self, prefix: str, layer: LayerSpec) -> NormsOfExperts | None:
        norms, config = layer.expert_norms, self.config
        if norms is None:
            return None
        router = self._vector(f"{prefix}.{norms.router}") * config.hidden_size**-0.5
        # A scaled vector has the norm of the whole one where its eps is scaled too.
        eps = config.norm_eps * layer.activation_scale**2
        return NormsOfExperts(
            before=self._norm(f"{prefix}.{norms.before}"),
            router=self.ops.make_norm(router, config.norm_eps),
            behind=self._norm(f"{prefix}.{norms.behind}", eps=eps),
            ffn_behind=self._norm(f"{prefix}.{norms.ffn_behind}", eps=eps),
        )

    def _expert_biases(self, both: list[Tensor | None], experts: ExpertsSpec) -> Tensor:
        """[count, 2, size] of one tensor that holds both, or of two, of which one may be missing."""
        shape = (experts.count, -1, experts.size)
        parts = [torch.zeros(shape[0], 1, shape[2]) if one is None else one.view(shape) for one in both]
        return torch.cat(parts, dim=1)

    def _shared_gate(self, prefix: str, layer: LayerSpec) -> Any | None:
        if layer.experts is None or not layer.experts.shared_gated:
            return None
        name, hidden = f"{prefix}.ffn_gate_inp_shexp.weight", self.config.hidden_size
        row = QuantizedMatrix(self.file.stored(name), self.file.tensors[name].type, (1, hidden))
        return self.ops.make_linear([row], None)

    def _flat(self, name: str) -> QuantizedMatrix:
        """The matrices of all experts as one."""
        info = self.file.tensors[f"{name}.weight"]
        count, rows, columns = info.shape
        return QuantizedMatrix(self.file.stored(f"{name}.weight"), info.type, (count * rows, columns))

    def _branch(self, prefix: str, layer: LayerSpec, norm: str | None, activation_scale: float) -> Branch:
        """A norm's weight takes the branch's scale in."""
        if norm is None:
            return Branch(None, layer.branch_scale, activation_scale=activation_scale)
        made = self._norm(f"{prefix}.{norm}", layer.branch_scale, layer.post_norm_eps)
        return Branch(made, activation_scale=activation_scale)

    def _output_scale(self, prefix: str, layer: LayerSpec) -> float:
        """Of the residual stream behind a layer."""
        found = self._optional_vector(f"{prefix}.layer_output_scale.weight") if layer.output_scaled else None
        return 1.0 if found is None else float(found)

    def _rotation(self, rope: RopeConfig | None) -> Rotation:
        """One without rotation turns a pair by 0."""
        device, pairing = self.ops.device, self.pairing
        if rope is None:
            return Rotation(torch.zeros(1, dtype=torch.float64, device=device), 1.0, pairing)
        divisors = None if rope.divisors is None else self._optional_vector(rope.divisors)
        inv_freq, magnitude = inverse_frequencies(rope, divisors)
        return Rotation(inv_freq.to(device), magnitude, pairing)

    def _linear(self, parts: list[Rows], columns: int, orders: Iterable[Tensor | None] = ()) -> Any:
        """Stack matrices and their biases, rows reordered by `orders`."""
        return self.ops.make_linear(*self._stacked(parts, columns, orders))

    def _stacked(
        self, parts: list[Rows], columns: int, orders: Iterable[Tensor | None] = ()
    ) -> tuple[list[QuantizedMatrix], Tensor | None]:
        ordered = list(zip(parts, list(orders) or [None] * len(parts), strict=True))
        matrices = [self._matrix(rows, columns, order) for rows, order in ordered]
        biases = [self._bias(rows, order) for rows, order in ordered]
        if all(bias is None for bias in biases):
            return matrices, None
        filled = [
            torch.zeros(rows.count) if bias is None else bias
            for bias, rows in zip(biases, parts, strict=True)
        ]
        return matrices, torch.cat(filled)

    def _matrix(self, rows: Rows, columns: int, order: Tensor | None = None) -> QuantizedMatrix:
        name = f"{rows.name}.weight"
        info = self.file.tensors[name]
        line = info.nbytes // rows.total
        stored = self.file.stored(name).part(rows.first * line, rows.count * line)
        return QuantizedMatrix(stored, info.type, (rows.count, columns), order)

    def _bias(self, rows: Rows, order: Tensor | None) -> Tensor | None:
        name = f"{rows.name}.bias"
        if name not in self.file.tensors:
            return None
        bias = self._vector(name)[rows.first : rows.first + rows.count]
        return bias if order is None else bias[order]

    def _vector(self, name: str) -> Tensor:
        info = self.file.tensors[name]
        return dequantize(self._raw(name), info.type, info.shape)

    def _optional_vector(self, name: str) -> Tensor | None:
        return self._vector(name) if name in self.file.tensors else None

    def embedding_norm(self) -> Any | None:
        """Behind the embedding, where there is one."""
        config = self.config
        if not config.embedding_norm:
            return None
        return self.ops.make_norm(torch.ones(config.hidden_size), config.norm_eps)

    def _norm_before(self, prefix: str, name: str | None) -> Any | None:
        """Of a branch's input."""
        return None if name is None else self._norm(f"{prefix}.{name}")

    def _norm(self, name: str, scale: float = 1.0, eps: float | None = None) -> Any:
        config = self.config
        bias = self._optional_vector(f"{name}.bias")
        bias = None if bias is None else bias * scale
        eps = config.norm_eps if eps is None else eps
        return self.ops.make_norm(self._vector(f"{name}.weight") * scale, eps, bias, config.centred)

    def _raw(self, name: str) -> Tensor:
        return as_tensor(self.file.tensor_bytes(name))
