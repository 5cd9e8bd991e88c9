"""Qwen 2, 2.5 and 3, and the text part of Qwen3-VL."""

from dataclasses import replace

from engine.model.families.family import Family, held_to, with_attention
from engine.model.keys import Keys
from engine.model.spec import ModelConfig, RopePairing


def _qwen2(keys: Keys, plain: ModelConfig) -> ModelConfig:
    """A file does not say which layers have its window: inside it, full attention computes the same."""
    window = keys.count("attention.sliding_window")
    biased = with_attention(plain, lambda _index, attention: replace(attention, biased=True))
    return held_to(biased, window) if window else biased


def _qwen3(keys: Keys, plain: ModelConfig) -> ModelConfig:
    window = keys.count("attention.sliding_window")
    normed = with_attention(plain, lambda _index, attention: replace(attention, qk_norm=True))
    return held_to(normed, window) if window else normed


FAMILIES = (
    Family("qwen2", RopePairing.HALVES, _qwen2),
    Family("qwen3", RopePairing.HALVES, _qwen3),
    # M-RoPE gives a text's tokens one position in all its sections.
    Family("qwen3vl", RopePairing.HALVES, _qwen3),
)
