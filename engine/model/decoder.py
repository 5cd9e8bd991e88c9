"""The one decoder body: pre-norm attention and gated feed-forward, for every architecture.

What differs between architectures is in the weights (`qk_norm`, biases) and the configuration; no
architecture's name appears here.
"""

from typing import Any

import torch
from torch import Tensor

from engine.model.config import ModelConfig
from engine.model.weights import LayerWeights, ModelWeights
from kernels.ops import Operations, PassLayout


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
        ops, weights = self.ops, self.weights
        prepared = ops.prepare(layout, kv, weights.inv_freq, weights.rope_magnitude)
        x = ops.embed(ids, weights.embedding)
        for index, layer in enumerate(weights.layers):
            x = self._layer(x, layer, prepared, index)
        if rows is not None:
            x = x[rows]
        x = ops.rms_norm(x, weights.output_norm)
        return ops.linear(x, weights.head).to(torch.float32)

    def _layer(self, x: Tensor, layer: LayerWeights, prepared: Any, index: int) -> Tensor:
        ops, config = self.ops, self.config
        normed = ops.rms_norm(x, layer.attn_norm)
        qkv = ops.linear(normed, layer.qkv)
        q = ops.rope_and_store(qkv, prepared, index, layer.qk_norm)
        attended = ops.attention(q, prepared, index, config.attention_scale)
        x = ops.add_linear(x, attended, layer.attn_output)
        normed = ops.rms_norm(x, layer.ffn_norm)
        gated = ops.silu_gate(ops.linear(normed, layer.gate_up))
        return ops.add_linear(x, gated, layer.ffn_down)
