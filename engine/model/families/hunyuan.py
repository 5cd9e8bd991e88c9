"""Hunyuan: dense models and those of experts, which norm queries and keys behind their rotation."""

from dataclasses import replace

from engine.model.family import Family, read_experts, with_attention, with_experts
from engine.model.keys import Keys
from engine.model.spec import ModelConfig, QKNorm, RopePairing


def _hunyuan_dense(_keys: Keys, plain: ModelConfig) -> ModelConfig:
    return with_attention(plain, lambda one: replace(one, qk_norm=QKNorm.ROTATED_HEADS))


def _hunyuan_moe(keys: Keys, plain: ModelConfig) -> ModelConfig:
    """Every token also uses a shared expert."""
    size = plain.layers[0].ffn_size
    shared = keys.positive("expert_shared_feed_forward_length", size)
    experts = replace(read_experts(keys, size), shared_size=shared)
    return with_experts(keys, _hunyuan_dense(keys, plain), experts)


FAMILIES = (
    Family("hunyuan-dense", RopePairing.HALVES, _hunyuan_dense),
    Family("hunyuan-moe", RopePairing.HALVES, _hunyuan_moe),
)
