"""The one decoder body: attention and gated feed-forward around a residual stream, for every family.

What differs between families is in the layers' weights and the configuration; no architecture's name
appears here.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from engine.model.spec import ModelConfig
from engine.model.weights import LayerWeights, ModelWeights
from kernels.contract import PLAIN_BRANCH, Branch, Operations, PassLayout, Rotation


class Decoder:
    """Runs packed passes of one model on one `Operations`."""

    def __init__(self, config: ModelConfig, weights: ModelWeights, ops: Operations) -> None:
        self.config = config
        self.weights = weights
        self.ops = ops
        self._numbers = {
            layer: number for group in config.kv_groups for number, layer in enumerate(group.layers)
        }
        """Layer → its number in its KV group."""

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
        ops, weights, config = self.ops, self.weights, self.config
        residual = ops.embed(ids, weights.embedding, weights.embedding_norm)
        if config.embedding_scale != 1.0:
            # Rows of an embedding may be views of its weights.
            residual = residual * config.embedding_scale
        delta: Any = None
        branch = PLAIN_BRANCH
        for index, layer in enumerate(weights.layers):
            delta = self._layer(residual, delta, branch, layer, prepared, index)
            branch = layer.ffn_branch
        x = ops.add_norm(residual, delta, weights.output_norm, rows, branch)
        logits = ops.linear(x, weights.head)
        return ops.soft_cap(logits, config.logit_softcap) if config.logit_softcap else logits

    def _layer(
        self, residual: Tensor, delta: Any, branch: Branch, layer: LayerWeights, prepared: Any, index: int
    ) -> Any:
        """Adds `delta` and its attention to `residual`; returns its feed-forward part, still to be added."""
        ops = self.ops
        x = ops.add_norm(residual, delta, layer.attn_norm, branch=branch)
        qkv = ops.linear(x, layer.qkv)
        if layer.all_heads_norms:
            qkv = ops.norm_columns(qkv, layer.all_heads_norms)
        attended = ops.attend(qkv, prepared, self._numbers[index], layer.attention)
        if layer.attn_gate is not None:
            attended = ops.sigmoid_gate(attended, ops.linear(x, layer.attn_gate))
        delta = ops.linear(attended, layer.attn_output)
        if self.config.layers[index].parallel:
            return ops.add_outputs(delta, self._feed_forward(x, layer), None, x)
        x = ops.add_norm(residual, delta, layer.ffn_norm, branch=layer.attn_branch)
        return self._feed_forward(x, layer)

    def _feed_forward(self, x: Any, layer: LayerWeights) -> Any:
        ops, ffn = self.ops, layer.ffn
        dense = None if ffn is None else ops.linear(ops.gated_linear(x, ffn.gate_up), ffn.down)
        if layer.experts is None:
            return dense
        chosen = ops.experts(x, layer.experts)
        return chosen if dense is None else ops.add_outputs(chosen, dense, layer.shared_gate, x)
