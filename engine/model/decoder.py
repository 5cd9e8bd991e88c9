"""The one decoder body: attention and gated feed-forward around a residual stream, for every family.

What differs between families is in the layers' weights and the configuration; no architecture's name
appears here.
"""

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from engine.model.layer_weights import LayerWeights, ModelWeights, NormsOfExperts
from engine.model.spec import ModelConfig
from kernels.contract import PLAIN_BRANCH, Branch, Operations, PassLayout, Rotation

T = TypeVar("T")


def finish(steps: Generator[None, None, T]) -> T:
    """What they give in the end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            made: T = end.value
            return made


class Decoder:
    """Runs packed passes of one model on one `Operations`."""

    def __init__(self, config: ModelConfig, weights: ModelWeights, ops: Operations, first: int = 0) -> None:
        """first: number of the first layer that the weights have, where they are not those of all."""
        self.config = config
        self.weights = weights
        self.ops = ops
        self.first = first
        self._numbers = {
            layer: number
            for group in config.kv_groups
            for number, layer in enumerate(group.among(self.layers))
        }
        """Layer → its number in its KV group."""

    @property
    def layers(self) -> range:
        """Numbers of the layers that it has."""
        return range(self.first, self.first + len(self.weights.layers))

    @property
    def rotations(self) -> Sequence[Rotation]:
        """What a pass is prepared with."""
        return self.weights.rotations

    @torch.inference_mode()
    def forward(
        self, ids: Tensor, layouts: Sequence[PassLayout], kv: Sequence[Any], rows: Tensor | None
    ) -> Tensor:
        """ids int64 [T] of a packed pass → logits float32 [R, vocab] of the tokens in `rows`.

        layouts, kv: by KV group. rows: int64 [R] indices into the pass, or None for all tokens. KV of all
        T tokens is written.
        """
        prepared = self.ops.prepare(layouts, kv, self.rotations)
        return self.ops.logits(self.run(ids, prepared, rows))

    def run(self, ids: Tensor, prepared: Any, rows: Tensor | None) -> Any:
        """The same for a pass that was prepared; the logits as the output matrix gives them."""
        residual = self.embed(ids)
        delta, branch = self.through(residual, prepared)
        return self.head(residual, delta, branch, rows)

    def embed(self, ids: Tensor) -> Tensor:
        """The residual stream before the first layer."""
        weights, scale = self.weights, self.config.embedding_scale
        residual = self.ops.embed(ids, weights.embedding, weights.embedding_norm)
        # Rows of an embedding may be views of its weights.
        return residual if scale == 1.0 else residual * scale

    def through(self, residual: Tensor, prepared: Any) -> tuple[Any, Branch]:
        """Take the residual stream through all layers; what the last one adds to it, and how."""
        return finish(self.steps(residual, prepared))

    def steps(self, residual: Tensor, prepared: Any) -> Generator[None, None, tuple[Any, Branch]]:
        """The same, at rest behind each layer."""
        delta: Any = None
        branch = PLAIN_BRANCH
        for index, layer in enumerate(self.weights.layers, self.first):
            delta = self._layer(residual, delta, branch, layer, prepared, index)
            branch = layer.ffn_branch
            yield
        return delta, branch

    def head(self, residual: Tensor, delta: Any, branch: Branch, rows: Tensor | None) -> Any:
        """Logits of the stream behind the last layer."""
        ops, softcap = self.ops, self.config.logit_softcap
        x = ops.add_norm(residual, delta, self.weights.output_norm, rows, branch)
        logits = ops.linear(x, self.weights.head)
        return ops.soft_cap(logits, softcap) if softcap else logits

    def _layer(
        self, residual: Tensor, delta: Any, branch: Branch, layer: LayerWeights, prepared: Any, index: int
    ) -> Any:
        """Adds `delta` and its attention to `residual`; returns its feed-forward part, still to be added."""
        ops = self.ops
        x = ops.add_norm(residual, delta, layer.attn_norm, branch=branch, reader=layer.qkv)
        qkv = self.linear(x, layer.qkv)
        if layer.all_heads_norms:
            qkv = ops.norm_columns(qkv, layer.all_heads_norms)
        attended = ops.attend(qkv, prepared, self._numbers[index], layer.attention)
        if layer.attn_gate is not None:
            attended = ops.sigmoid_gate(attended, self.linear(x, layer.attn_gate))
        delta = self.linear(attended, layer.attn_output)
        if self.config.layers[index].parallel:
            return ops.add_outputs(delta, self._feed_forward(x, layer), None, x)
        own = layer.experts if layer.expert_norms is None else None
        x = ops.add_norm(residual, delta, layer.ffn_norm, branch=layer.attn_branch, reader=own)
        if layer.expert_norms is not None:
            return self._beside_experts(residual, x, layer, layer.expert_norms)
        return self._feed_forward(x, layer)

    def _beside_experts(self, residual: Tensor, x: Any, layer: LayerWeights, norms: NormsOfExperts) -> Any:
        """The feed-forward part of x, and experts that read the residual stream on their own."""
        ops, ffn = self.ops, layer.ffn
        assert ffn is not None
        dense = self.linear(self.gated_linear(x, ffn.gate_up), ffn.down)
        dense = ops.norm_columns(dense, [norms.ffn_behind])
        x = ops.add_norm(residual, None, norms.before)
        chosen = self.experts(x, layer.experts, ops.add_norm(residual, None, norms.router))
        return ops.add_outputs(dense, ops.norm_columns(chosen, [norms.behind]), None, x)

    def _feed_forward(self, x: Any, layer: LayerWeights) -> Any:
        ops, ffn = self.ops, layer.ffn
        dense = None if ffn is None else self.linear(self.gated_linear(x, ffn.gate_up), ffn.down)
        if layer.experts is None:
            return dense
        chosen = self.experts(x, layer.experts)
        return chosen if dense is None else ops.add_outputs(chosen, dense, layer.shared_gate, x)

    def linear(self, x: Any, handle: Any) -> Any:
        """Of one layer."""
        return self.ops.linear(x, handle)

    def gated_linear(self, x: Any, handle: Any) -> Any:
        """Of one layer."""
        return self.ops.gated_linear(x, handle)

    def experts(self, x: Any, handle: Any, routed: Any | None = None) -> Any:
        """Of one layer; routed: what their router reads where that is not x."""
        return self.ops.experts(x, handle, routed)
