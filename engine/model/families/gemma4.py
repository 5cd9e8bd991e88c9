"""Gemma 4: full layers with few, large heads of keys and values, and experts beside a feed-forward part."""

from dataclasses import replace

from engine.model.families.gemma import sandwiched
from engine.model.family import (
    Family,
    read_experts,
    windowed_base,
    with_experts,
    with_layers,
    with_marked_attention,
)
from engine.model.keys import Keys
from engine.model.spec import AttentionSpec, ExpertNorms, ModelConfig, QKNorm, RopeConfig, RopePairing

_NORMS = ExpertNorms(
    before="pre_ffw_norm_2",
    router="ffn_gate_inp.scale",
    behind="post_ffw_norm_2",
    ffn_behind="post_ffw_norm_1",
)
_SOFTCAP = 30.0


def _gemma4(keys: Keys, plain: ModelConfig) -> ModelConfig:
    for key in ("attention.shared_kv_layers", "embedding_length_per_layer_input"):
        if count := keys.count(key):
            raise keys.unsupported(key, f"{count}; '{keys.arch}' models with it are not supported")
    windowed, window = keys.windowed(plain.num_layers), keys.positive("attention.sliding_window")
    size = _windowed_size(keys, plain.layers[0].attention.head_dim)
    rope = _windowed_rope(keys, plain.layers[0].attention.rope, size)

    def changed(attention: AttentionSpec, narrow: bool) -> AttentionSpec:
        if not narrow:
            return _full(attention)
        return replace(_common(attention), head_dim=size, rope=rope, window=window)

    made = sandwiched(keys, with_marked_attention(plain, windowed, changed), _SOFTCAP)
    made = with_layers(made, lambda layer: replace(layer, output_scaled=True))
    if not keys.count("expert_count"):
        return made
    experts = replace(read_experts(keys, plain.layers[0].ffn_size), weighed=True, fused=True)
    return with_experts(keys, made, experts, norms=_NORMS)


def _common(plain: AttentionSpec) -> AttentionSpec:
    return replace(plain, scale=1.0, qk_norm=QKNorm.HEADS, value_norm=True)


def _full(plain: AttentionSpec) -> AttentionSpec:
    """Divisors keep most of the pairs from rotating."""
    assert plain.rope is not None
    return replace(_common(plain), keys_as_values=True, rope=replace(plain.rope, needs_divisors=True))


def _windowed_size(keys: Keys, full: int) -> int:
    size = keys.positive("attention.key_length_swa", full)
    values = keys.positive("attention.value_length_swa", size)
    if values != size:
        raise keys.unsupported("attention.value_length_swa", f"{values} differs from the key length {size}")
    return size


def _windowed_rope(keys: Keys, full: RopeConfig | None, size: int) -> RopeConfig:
    assert full is not None
    dims = keys.positive("rope.dimension_count_swa", size)
    if dims > size or dims % 2:
        raise keys.error("rope.dimension_count_swa", f"{dims} of {size} dimensions: no pairs")
    return replace(full.plain(windowed_base(keys)), dims=dims)


FAMILIES = (Family("gemma4", RopePairing.HALVES, _gemma4),)
