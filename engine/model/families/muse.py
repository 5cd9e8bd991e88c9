"""Muse Glimmer: normed embeddings and branches, gated attention, rotation inside windows alone."""

from dataclasses import replace

from engine.model.family import Family, windowed_base, with_marked_layers
from engine.model.keys import Keys
from engine.model.spec import LayerSpec, ModelConfig, QKNorm, RopePairing

_POST_NORM_EPS = 1e-8
_SOFTCAP = 30.0


def _muse_glimmer(keys: Keys, plain: ModelConfig) -> ModelConfig:
    """No key gives the epsilon of the norms behind a branch."""
    window = keys.positive("attention.sliding_window")
    windowed, base = keys.windowed(plain.num_layers, period=4), windowed_base(keys)

    def changed(layer: LayerSpec, narrow: bool) -> LayerSpec:
        attention = layer.attention
        rope = attention.rope.plain(base) if narrow and attention.rope is not None else None
        return replace(
            layer,
            attention=replace(
                attention, window=window if narrow else 0, rope=rope, qk_norm=QKNorm.HEADS, gated=True
            ),
            attn_post_norm="post_attention_norm",
            ffn_post_norm="post_ffw_norm",
            post_norm_eps=_POST_NORM_EPS,
        )

    return replace(
        with_marked_layers(plain, windowed, changed),
        embedding_norm=True,
        logit_scale=keys.above_zero("logit_scale"),
        logit_softcap=keys.number("final_logit_softcapping", _SOFTCAP),
    )


FAMILIES = (Family("muse-glimmer", RopePairing.ADJACENT, _muse_glimmer),)
