"""Ministral 3: a llama with YaRN whose queries grow with their position beyond the original context."""

from dataclasses import replace

from engine.model.family import Family, with_attention
from engine.model.keys import Keys
from engine.model.spec import AttentionSpec, ModelConfig, RopePairing


def _mistral3(keys: Keys, plain: ModelConfig) -> ModelConfig:
    temperature = keys.number("attention.temperature_scale", 0.0)

    def grown(attention: AttentionSpec) -> AttentionSpec:
        assert attention.rope is not None
        length = attention.rope.original_context
        return replace(attention, temperature=temperature, temperature_length=length)

    return with_attention(plain, grown) if temperature else plain


FAMILIES = (Family("mistral3", RopePairing.ADJACENT, _mistral3),)
