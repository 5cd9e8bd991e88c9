"""What sets one architecture apart from the plain decoder."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from engine.model.keys import Keys
from engine.model.spec import AttentionSpec, LayerSpec, ModelConfig, RopePairing, RopeScaling

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


def with_layers(config: ModelConfig, change: Callable[[int, LayerSpec], LayerSpec]) -> ModelConfig:
    """Every layer changed by `change(index, layer)`."""
    return replace(config, layers=tuple(change(index, one) for index, one in enumerate(config.layers)))


def with_attention(config: ModelConfig, change: Callable[[int, AttentionSpec], AttentionSpec]) -> ModelConfig:
    """The same for the attention of every layer."""
    return with_layers(config, lambda index, layer: replace(layer, attention=change(index, layer.attention)))


def held_to(config: ModelConfig, tokens: int) -> ModelConfig:
    """The decoder with contexts of at most so many tokens."""
    return replace(config, context_length=min(config.context_length, tokens))
