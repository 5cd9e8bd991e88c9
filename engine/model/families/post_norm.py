"""Families with norms behind the branches alone: OLMo 2 and 3, EXAONE 4."""

from dataclasses import replace

from engine.model.family import Family, windowed_base, with_layers, with_marked_attention, without_guessing
from engine.model.keys import Keys
from engine.model.spec import AttentionSpec, LayerSpec, ModelConfig, QKNorm, RopePairing

_EXAONE4_WINDOWED_LAYERS = 64
_EXAONE4_WINDOW = 4096


def _behind(plain: ModelConfig) -> ModelConfig:
    def changed(layer: LayerSpec) -> LayerSpec:
        return replace(
            layer,
            attn_norm=None,
            attn_post_norm="post_attention_norm",
            ffn_norm=None,
            ffn_post_norm="post_ffw_norm",
        )

    return with_layers(plain, changed)


def _olmo2(keys: Keys, plain: ModelConfig) -> ModelConfig:
    """OLMo 3 has windowed layers, which rotate without the scaling of the others."""
    window = keys.count("attention.sliding_window")
    windowed, base = keys.windowed(plain.num_layers, period=4), windowed_base(keys)

    def changed(attention: AttentionSpec, narrow: bool) -> AttentionSpec:
        normed = replace(attention, qk_norm=QKNorm.ALL_HEADS)
        if not window or not narrow or normed.rope is None:
            return normed
        return replace(normed, window=window, rope=normed.rope.plain(base))

    return with_marked_attention(_behind(plain), windowed, changed)


def _exaone4(keys: Keys, plain: ModelConfig) -> ModelConfig:
    """The 32B alone has windowed layers, and the others of it do not rotate; any file may have the keys."""
    made = _behind(without_guessing(keys, plain))
    window = keys.count("attention.sliding_window") or _EXAONE4_WINDOW
    windowed, base = keys.windowed(made.num_layers, period=4), windowed_base(keys)
    mixed = made.num_layers == _EXAONE4_WINDOWED_LAYERS

    def changed(attention: AttentionSpec, narrow: bool) -> AttentionSpec:
        normed = replace(attention, qk_norm=QKNorm.HEADS)
        if not mixed or normed.rope is None:
            return normed
        if not narrow:
            return replace(normed, rope=None)
        return replace(normed, window=window, rope=replace(normed.rope, base=base))

    return with_marked_attention(made, windowed, changed)


FAMILIES = (
    Family("olmo2", RopePairing.HALVES, _olmo2),
    Family("exaone4", RopePairing.HALVES, _exaone4),
)
