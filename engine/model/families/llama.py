"""Llama, and what is a llama with a twist: Mistral's windows, SmolLM3's layers without rotation."""

from dataclasses import replace

from engine.model.families.family import Family, with_attention
from engine.model.keys import Keys
from engine.model.spec import ModelConfig, RopePairing

_NO_ROPE_STEP = 4


def _llama(keys: Keys, plain: ModelConfig) -> ModelConfig:
    """Files of Mistral 7B name a window; it holds for all layers."""
    window = keys.count("attention.sliding_window")
    return with_attention(plain, lambda _index, attention: replace(attention, window=window))


def _smollm3(_keys: Keys, plain: ModelConfig) -> ModelConfig:
    """Every fourth layer has no rotation; no key says so."""
    return with_attention(
        plain,
        lambda index, attention: attention if (index + 1) % _NO_ROPE_STEP else replace(attention, rope=None),
    )


FAMILIES = (
    Family("llama", RopePairing.ADJACENT, _llama),
    Family("smollm3", RopePairing.ADJACENT, _smollm3),
    Family("internlm2", RopePairing.ADJACENT),
    Family("ernie4_5", RopePairing.ADJACENT),
)
