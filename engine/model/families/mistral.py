"""Ministral 3: a llama with YaRN whose queries grow with their position beyond the original context."""

from engine.model.families.family import Family, held_to
from engine.model.keys import Keys
from engine.model.spec import ModelConfig, RopePairing


def _mistral3(keys: Keys, plain: ModelConfig) -> ModelConfig:
    """Inside the original context the queries' factor is 1 everywhere; beyond it there is no such factor."""
    scale = keys.number("attention.temperature_scale", 0.0)
    rope = plain.layers[0].attention.rope
    return held_to(plain, rope.original_context) if scale and rope is not None else plain


FAMILIES = (Family("mistral3", RopePairing.ADJACENT, _mistral3),)
