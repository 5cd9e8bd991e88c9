"""Gemma 2 and 3: norms on both sides of a branch, windows, scaled embeddings, GELU."""

from dataclasses import replace

from engine.model.family import Family, with_layers, with_marked_attention
from engine.model.keys import Keys
from engine.model.spec import (
    WIDE_ACTIVATIONS,
    Activation,
    AttentionSpec,
    LayerSpec,
    ModelConfig,
    QKNorm,
    RopePairing,
)

_GEMMA2_27B_LAYERS = 46
_GEMMA3_27B_LAYERS = 62


def sandwiched(keys: Keys, plain: ModelConfig, cap: float) -> ModelConfig:
    """What all of the series have in common; `cap` is that of logits where no key gives one."""

    def changed(layer: LayerSpec) -> LayerSpec:
        return replace(
            layer,
            activation=Activation.GELU,
            activation_scale=WIDE_ACTIVATIONS,
            attn_post_norm="post_attention_norm",
            ffn_post_norm="post_ffw_norm",
        )

    softcap = keys.number("final_logit_softcapping", cap)
    made = with_layers(plain, changed)
    return replace(made, embedding_scale=plain.hidden_size**0.5, logit_softcap=softcap)


def _scaled(plain: ModelConfig, attention: AttentionSpec, exception: int) -> AttentionSpec:
    """The largest model of a series scales scores by its width a head, not by the heads' size."""
    if plain.num_layers != exception:
        return attention
    return replace(attention, scale=(plain.hidden_size / attention.heads) ** -0.5)


def _gemma2(keys: Keys, plain: ModelConfig) -> ModelConfig:
    window = keys.positive("attention.sliding_window", 4096)
    windowed = keys.windowed(plain.num_layers, period=2)
    softcap = keys.number("attn_logit_softcapping", 50.0)

    def changed(attention: AttentionSpec, narrow: bool) -> AttentionSpec:
        scaled = _scaled(plain, attention, _GEMMA2_27B_LAYERS)
        return replace(scaled, window=window if narrow else 0, softcap=softcap)

    return sandwiched(keys, with_marked_attention(plain, windowed, changed), cap=30.0)


def _gemma3(keys: Keys, plain: ModelConfig) -> ModelConfig:
    """Windowed layers rotate by a base of their own, without the scaling of the others."""
    window = keys.count("attention.sliding_window")
    base = keys.above_zero("rope.freq_base_swa", 10000.0)
    windowed = keys.windowed(plain.num_layers, period=6)

    def changed(attention: AttentionSpec, narrow: bool) -> AttentionSpec:
        one = replace(_scaled(plain, attention, _GEMMA3_27B_LAYERS), qk_norm=QKNorm.HEADS)
        if window and narrow and one.rope is not None:
            return replace(one, window=window, rope=one.rope.plain(base))
        return one

    return sandwiched(keys, with_marked_attention(plain, windowed, changed), cap=0.0)


FAMILIES = (
    Family("gemma2", RopePairing.HALVES, _gemma2),
    Family("gemma3", RopePairing.HALVES, _gemma3),
)
