"""What sets one architecture apart from the plain decoder."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from engine.model.keys import Keys
from engine.model.spec import (
    AttentionSpec,
    ExpertNorms,
    ExpertsSpec,
    Gating,
    LayerSpec,
    ModelConfig,
    RopePairing,
    RopeScaling,
)

Mark = TypeVar("Mark", bound=Hashable)
"""What tells layers of a model apart, such as whether they have a window."""

COMMON_SCALINGS = (RopeScaling.NONE, RopeScaling.LINEAR, RopeScaling.YARN)


def as_it_is(_keys: Keys, plain: ModelConfig) -> ModelConfig:
    """The plain decoder itself."""
    return plain


@dataclass(frozen=True, slots=True)
class Family:
    """One value of `general.architecture`."""

    architecture: str
    pairing: RopePairing
    describe: Callable[[Keys, ModelConfig], ModelConfig] = as_it_is
    """From the plain decoder that the common keys describe to this family's."""
    rope_scalings: tuple[RopeScaling, ...] = COMMON_SCALINGS
    centred: bool = False
    """LayerNorm in place of RMS."""


def with_layers(config: ModelConfig, change: Callable[[LayerSpec], LayerSpec]) -> ModelConfig:
    """Every layer changed."""
    return with_marked_layers(config, (None,) * config.num_layers, lambda layer, _mark: change(layer))


def with_attention(config: ModelConfig, change: Callable[[AttentionSpec], AttentionSpec]) -> ModelConfig:
    """The attention of every layer changed."""
    return with_layers(config, lambda layer: replace(layer, attention=change(layer.attention)))


def with_marked_layers(
    config: ModelConfig, marks: Sequence[Mark], change: Callable[[LayerSpec, Mark], LayerSpec]
) -> ModelConfig:
    """Every layer changed by what it is and by its mark; those that are one object stay one by each mark."""
    made: dict[tuple[int, Mark], LayerSpec] = {}
    layers = []
    for layer, mark in zip(config.layers, marks, strict=True):
        known = id(layer), mark
        if known not in made:
            made[known] = change(layer, mark)
        layers.append(made[known])
    return replace(config, layers=tuple(layers))


def with_marked_attention(
    config: ModelConfig, marks: Sequence[Mark], change: Callable[[AttentionSpec, Mark], AttentionSpec]
) -> ModelConfig:
    """The same for the attention of every layer."""
    return with_marked_layers(
        config, marks, lambda layer, mark: replace(layer, attention=change(layer.attention, mark))
    )


def without_guessing(keys: Keys, plain: ModelConfig) -> ModelConfig:
    """The decoder without the file's last layers, which guess tokens ahead."""
    guessing = keys.count("nextn_predict_layers")
    if guessing >= plain.num_layers:
        raise keys.error("nextn_predict_layers", f"{guessing} of {plain.num_layers} layers")
    return replace(plain, layers=plain.layers[: plain.num_layers - guessing], ignored_layers=guessing)


def windowed_base(keys: Keys) -> float:
    """The rotation's base of windowed layers: that of the others where no key gives one."""
    return keys.above_zero("rope.freq_base_swa", keys.number("rope.freq_base", 10000.0))


def held_to(config: ModelConfig, tokens: int) -> ModelConfig:
    """The decoder with contexts of at most so many tokens."""
    return replace(config, context_length=min(config.context_length, tokens))


_GATINGS = {1: Gating.SOFTMAX, 2: Gating.SIGMOID, 3: Gating.SOFTMAX_SELECTED}


def read_experts(keys: Keys, size: int, gating: Gating = Gating.SOFTMAX) -> ExpertsSpec:
    """The experts that the common keys describe, of a width of `size` where no key gives one."""
    number = keys.count("expert_gating_func")
    if number and number not in _GATINGS:
        raise keys.unsupported("expert_gating_func", f"{number} is not one of {sorted(_GATINGS)}")
    return ExpertsSpec(
        count=keys.positive("expert_count"),
        used=keys.positive("expert_used_count"),
        size=keys.positive("expert_feed_forward_length", size),
        gating=_GATINGS.get(number, gating),
        scale=keys.number("expert_weights_scale", 1.0) or 1.0,
        groups=keys.count("expert_group_count") or 1,
        groups_used=keys.count("expert_group_used_count") or 1,
    )


def with_experts(
    keys: Keys,
    config: ModelConfig,
    experts: ExpertsSpec,
    leading_dense: int = 0,
    step: int = 1,
    norms: ExpertNorms | None = None,
) -> ModelConfig:
    """Experts for the feed-forward part of every `step`-th layer that is none of the leading ones.

    With norms of their own they stand beside it.
    """
    if experts.used > experts.count:
        raise keys.error("expert_used_count", f"{experts.used} of {experts.count} experts")
    if experts.count % experts.groups or experts.groups_used > experts.groups:
        raise keys.error("expert_group_count", f"{experts.groups} for {experts.count} experts")

    def change(layer: LayerSpec, dense: bool) -> LayerSpec:
        if dense:
            return layer
        size = layer.ffn_size if norms else 0
        return replace(layer, ffn_size=size, experts=experts, expert_norms=norms)

    dense = [index < leading_dense or (index + 1) % step > 0 for index in range(config.num_layers)]
    return with_marked_layers(config, dense, change)
