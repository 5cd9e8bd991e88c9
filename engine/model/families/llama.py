"""Llama, and what is a llama with a twist: Mistral's windows, SmolLM3's layers without rotation."""

from dataclasses import replace

from engine.model.family import (
    Family,
    read_experts,
    with_attention,
    with_experts,
    with_layers,
    with_marked_attention,
)
from engine.model.keys import Keys
from engine.model.spec import ModelConfig, RopePairing

_NO_ROPE_STEP = 4


def _llama(keys: Keys, plain: ModelConfig) -> ModelConfig:
    """Files of Mistral 7B name a window, which holds for all layers; those of Mixtral have experts."""
    window = keys.count("attention.sliding_window")
    made = plain
    if window:
        made = with_attention(plain, lambda attention: replace(attention, window=window))
    if not keys.count("expert_count"):
        return made
    return with_experts(keys, made, read_experts(keys, plain.layers[0].ffn_size))


def _smollm3(_keys: Keys, plain: ModelConfig) -> ModelConfig:
    """Every fourth layer has no rotation; no key says so."""
    rotates = [(index + 1) % _NO_ROPE_STEP > 0 for index in range(plain.num_layers)]
    return with_marked_attention(
        plain, rotates, lambda attention, mark: attention if mark else replace(attention, rope=None)
    )


def _seed_oss(_keys: Keys, plain: ModelConfig) -> ModelConfig:
    """The second norm has another name."""
    return with_layers(plain, lambda layer: replace(layer, ffn_norm="post_attention_norm"))


FAMILIES = (
    Family("llama", RopePairing.ADJACENT, _llama),
    Family("smollm3", RopePairing.ADJACENT, _smollm3),
    Family("internlm2", RopePairing.ADJACENT),
    Family("seed_oss", RopePairing.HALVES, _seed_oss),
)
