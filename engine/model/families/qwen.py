"""Qwen 2, 2.5 and 3, dense and of experts, and the text part of Qwen3-VL."""

from dataclasses import replace

from engine.model.family import Family, held_to, read_experts, with_attention, with_experts
from engine.model.keys import Keys
from engine.model.spec import ModelConfig, QKNorm, RopePairing


def _qwen2(keys: Keys, plain: ModelConfig) -> ModelConfig:
    """A file does not say which layers have its window: inside it, full attention computes the same."""
    window = keys.count("attention.sliding_window")
    biased = with_attention(plain, lambda attention: replace(attention, biased=True))
    return held_to(biased, window) if window else biased


def _qwen3(keys: Keys, plain: ModelConfig) -> ModelConfig:
    window = keys.count("attention.sliding_window")
    normed = with_attention(plain, lambda attention: replace(attention, qk_norm=QKNorm.HEADS))
    return held_to(normed, window) if window else normed


def _qwen3moe(keys: Keys, plain: ModelConfig) -> ModelConfig:
    made = _qwen3(keys, plain)
    return with_experts(keys, made, read_experts(keys, plain.layers[0].ffn_size // _used(keys)))


def _qwen2moe(keys: Keys, plain: ModelConfig) -> ModelConfig:
    """Weights of the selected stay what the softmax over all gave them."""
    made = _qwen2(keys, plain)
    size = plain.layers[0].ffn_size
    experts = replace(
        read_experts(keys, size // _used(keys)),
        normalised=False,
        shared_size=keys.positive("expert_shared_feed_forward_length", size),
        shared_gated=True,
    )
    return with_experts(keys, made, experts)


def _used(keys: Keys) -> int:
    return keys.positive("expert_used_count")


FAMILIES = (
    Family("qwen2", RopePairing.HALVES, _qwen2),
    Family("qwen3", RopePairing.HALVES, _qwen3),
    # M-RoPE gives a text's tokens one position in all its sections.
    Family("qwen3vl", RopePairing.HALVES, _qwen3),
    Family("qwen2moe", RopePairing.HALVES, _qwen2moe),
    Family("qwen3moe", RopePairing.HALVES, _qwen3moe),
    Family("qwen3vlmoe", RopePairing.HALVES, _qwen3moe),
)
