"""gpt-oss: every second layer sees a window, heads have sinks, experts have biases and a clamped gate."""

from dataclasses import replace

from engine.model.family import Family, read_experts, with_experts, with_marked_layers
from engine.model.keys import Keys
from engine.model.spec import Activation, Gating, LayerSpec, ModelConfig, RopePairing


def _gpt_oss(keys: Keys, plain: ModelConfig) -> ModelConfig:
    window = keys.positive("attention.sliding_window")
    windowed = keys.windowed(plain.num_layers, period=2)

    def changed(layer: LayerSpec, narrow: bool) -> LayerSpec:
        attention = replace(layer.attention, sinks=True, window=window if narrow else 0)
        return replace(
            layer,
            attention=attention,
            ffn_norm="post_attention_norm",
            activation=Activation.SWIGLU_OAI,
        )

    experts = read_experts(keys, plain.layers[0].ffn_size, Gating.SOFTMAX_SELECTED)
    return with_experts(keys, with_marked_layers(plain, windowed, changed), experts)


FAMILIES = (Family("gpt-oss", RopePairing.HALVES, _gpt_oss),)
