"""The one decoder body: pre-norm attention and gated feed-forward, for every architecture.

What differs between architectures is in the weights (`qk_norm`, biases) and the configuration; no
architecture's name appears here.
"""

from typing import Any

import torch
from torch import Tensor

from engine.model.config import ModelConfig
from engine.model.weights import LayerWeights, ModelWeights
from kernels.contract import Operations, PassLayout


class Decoder:
    """Runs packed passes of one model on one `Operations`."""

    def __init__(self, config: ModelConfig, weights: ModelWeights, ops: Operations) -> None:
        self.config = config
        self.weights = weights
        self.ops = ops

    @torch.inference_mode()
    def forward(self, ids: Tensor, layout: PassLayout, kv: Any, rows: Tensor | None) -> Tensor:
        """ids int64 [T] of a packed pass → logits float32 [R, vocab] of the tokens in `rows`.

        rows: int64 [R] indices into the pass, or None for all tokens. KV of all T tokens is written.
        """
        weights = self.weights
        prepared = self.ops.prepare(layout, kv, weights.inv_freq, weights.rope_magnitude)
        return self.ops.logits(self.run(ids, prepared, rows))

    def run(self, ids: Tensor, prepared: Any, rows: Tensor | None) -> Any:
        """The same for a pass that was prepared; the logits as the output matrix gives them."""
        ops, weights = self.ops, self.weights
        residual = ops.embed(ids, weights.embedding)
        delta: Any = None
        for index, layer in enumerate(weights.layers):
            delta = self._layer(residual, delta, layer, prepared, index)
        return ops.linear(ops.add_norm(residual, delta, weights.output_norm, rows), weights.head)

    def _layer(self, residual: Tensor, delta: Any, layer: LayerWeights, prepared: Any, index: int) -> Any:
        """Adds its attention to `residual`; returns its feed-forward part, which the next norm adds."""
        ops = self.ops
        x = ops.add_norm(residual, delta, layer.attn_norm)
        qkv = ops.linear(x, layer.qkv)
        attended = ops.attend(qkv, prepared, index, layer.qk_norm, self.config.attention_scale)
        x = ops.add_norm(residual, ops.linear(attended, layer.attn_output), layer.ffn_norm)
        return ops.linear(ops.gated_linear(x, layer.gate_up), layer.ffn_down)
