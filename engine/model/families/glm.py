"""GLM-4's dense models: norms on both sides of a branch, half of a head rotates."""

from dataclasses import replace

from engine.model.families.family import Family, with_layers
from engine.model.keys import Keys
from engine.model.spec import LayerSpec, ModelConfig, RopePairing


def _glm4(_keys: Keys, plain: ModelConfig) -> ModelConfig:
    def sandwiched(_index: int, layer: LayerSpec) -> LayerSpec:
        return replace(layer, attn_post_norm="post_attention_norm", ffn_post_norm="post_ffw_norm")

    return with_layers(plain, sandwiched)


FAMILIES = (Family("glm4", RopePairing.ADJACENT, _glm4),)
