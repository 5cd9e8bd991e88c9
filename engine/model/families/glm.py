"""GLM-4: dense models with norms on both sides of a branch, and those of experts from 4.5 on."""

from dataclasses import replace

from engine.model.family import Family, read_experts, with_experts, with_layers, without_guessing
from engine.model.keys import Keys
from engine.model.spec import WIDE_ACTIVATIONS, Gating, LayerSpec, ModelConfig, QKNorm, RopePairing


def _glm4(_keys: Keys, plain: ModelConfig) -> ModelConfig:
    def sandwiched(layer: LayerSpec) -> LayerSpec:
        return replace(
            layer,
            attn_post_norm="post_attention_norm",
            ffn_post_norm="post_ffw_norm",
            activation_scale=WIDE_ACTIVATIONS,
        )

    return with_layers(plain, sandwiched)


def _glm4moe(keys: Keys, plain: ModelConfig) -> ModelConfig:
    normed = any(f"blk.0.attn_{part}_norm.weight" in keys.file.tensors for part in "qk")

    def changed(layer: LayerSpec) -> LayerSpec:
        return replace(
            layer,
            attention=replace(layer.attention, qk_norm=QKNorm.HEADS if normed else None),
            ffn_norm="post_attention_norm",
            activation_scale=WIDE_ACTIVATIONS,
        )

    one = read_experts(keys, plain.layers[0].ffn_size, Gating.SIGMOID)
    experts = replace(
        one,
        normalised=keys.flag("expert_weights_norm", True),
        shared_size=one.size * keys.count("expert_shared_count"),
    )
    return with_experts(
        keys,
        with_layers(without_guessing(keys, plain), changed),
        experts,
        keys.count("leading_dense_block_count"),
    )


FAMILIES = (
    Family("glm4", RopePairing.ADJACENT, _glm4),
    Family("glm4moe", RopePairing.HALVES, _glm4moe),
)
