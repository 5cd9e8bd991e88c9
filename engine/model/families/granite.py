"""Granite 3 and 4 without Mamba layers, and MiniCPM: scales on embeddings, branches, scores and logits."""

from dataclasses import replace

from engine.model.family import Family, read_experts, with_experts, with_layers
from engine.model.keys import Keys
from engine.model.spec import LayerSpec, ModelConfig, RopePairing

_MINICPM_EMBEDDING, _MINICPM_DEPTH, _MINICPM_BASE = 12.0, 1.4, 256.0


def _scaled(keys: Keys, plain: ModelConfig, embedding: float, branch: float, divisor: float) -> ModelConfig:
    """The defaults are those of keys that a file lacks; logits are divided by theirs."""
    scale = keys.number("residual_scale", branch) or 1.0
    rotates = keys.flag("rope.scaling.finetuned", True)

    def changed(layer: LayerSpec) -> LayerSpec:
        attention = layer.attention if rotates else replace(layer.attention, rope=None)
        return replace(layer, attention=attention, branch_scale=scale)

    return replace(
        with_layers(plain, changed),
        embedding_scale=keys.number("embedding_scale", embedding) or 1.0,
        logit_scale=1.0 / (keys.number("logit_scale", divisor) or 1.0),
    )


def _granite(keys: Keys, plain: ModelConfig) -> ModelConfig:
    return _scaled(keys, plain, 1.0, 1.0, 1.0)


def _granitemoe(keys: Keys, plain: ModelConfig) -> ModelConfig:
    """An expert is as wide as the key of dense models says."""
    made = _granite(keys, plain)
    shared = keys.count("expert_shared_feed_forward_length")
    experts = replace(read_experts(keys, plain.layers[0].ffn_size), shared_size=shared)
    return with_experts(keys, made, experts)


def _minicpm(keys: Keys, plain: ModelConfig) -> ModelConfig:
    branch = _MINICPM_DEPTH / plain.num_layers**0.5
    return _scaled(keys, plain, _MINICPM_EMBEDDING, branch, plain.hidden_size / _MINICPM_BASE)


FAMILIES = (
    Family("granite", RopePairing.ADJACENT, _granite),
    Family("granitemoe", RopePairing.ADJACENT, _granitemoe),
    Family("minicpm", RopePairing.ADJACENT, _minicpm),
)
