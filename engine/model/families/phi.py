"""Phi-3, 3.5, 4 and 4-mini: fused matrices, frequencies that depend on how long contexts may get."""

from dataclasses import replace

from engine.model.family import COMMON_SCALINGS, Family, with_attention, with_layers
from engine.model.keys import Keys
from engine.model.spec import AttentionSpec, ModelConfig, RopePairing, RopeScaling


def _phi3(keys: Keys, plain: ModelConfig) -> ModelConfig:
    """The long factors serve whole chats where contexts may pass the original length, the short ones else.

    A chat that changed between them would have to be read again. Windows are written and never used.
    """
    keys.count("attention.sliding_window")

    def stretched(attention: AttentionSpec) -> AttentionSpec:
        assert attention.rope is not None
        used, other = "rope_factors_long.weight", "rope_factors_short.weight"
        if plain.context_length <= attention.rope.original_context:
            used, other = other, used
        return replace(attention, rope=replace(attention.rope, divisors=used, other_divisors=other))

    made = with_attention(plain, stretched)
    return with_layers(made, lambda layer: replace(layer, fused=True))


FAMILIES = (
    Family("phi3", RopePairing.HALVES, _phi3, rope_scalings=(*COMMON_SCALINGS, RopeScaling.LONGROPE)),
)
