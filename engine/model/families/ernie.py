"""Ernie 4.5: dense models, and those of experts behind some dense layers."""

from dataclasses import replace

from engine.model.family import Family, read_experts, with_experts
from engine.model.keys import Keys
from engine.model.spec import ModelConfig, RopePairing


def _ernie4_5_moe(keys: Keys, plain: ModelConfig) -> ModelConfig:
    """Behind the leading layers the last one of every `interleave_moe_layer_step` has experts."""
    shared = keys.count("expert_shared_feed_forward_length")
    experts = replace(read_experts(keys, plain.layers[0].ffn_size), shared_size=shared)
    leading = keys.count("leading_dense_block_count")
    return with_experts(keys, plain, experts, leading, keys.positive("interleave_moe_layer_step"))


FAMILIES = (
    Family("ernie4_5", RopePairing.ADJACENT),
    Family("ernie4_5-moe", RopePairing.ADJACENT, _ernie4_5_moe),
)
