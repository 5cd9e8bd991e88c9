"""One decoder's weights, as handles of the operations that hold them."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from kernels.contract import Branch, LayerAttention, Rotation


@dataclass(slots=True)
class LayerWeights:
    """One decoder layer."""

    attn_norm: Any | None
    qkv: Any
    all_heads_norms: list[Any]
    """Over all of q and all of k, or none."""
    attention: LayerAttention
    attn_gate: Any | None
    """Of what it attended to."""
    attn_output: Any
    attn_branch: Branch
    ffn_norm: Any | None
    ffn: "FeedForward | None"
    experts: Any | None
    """In place of `ffn`, or beside it: then that is the shared expert, or `expert_norms` tell."""
    expert_norms: "NormsOfExperts | None"
    shared_gate: Any | None
    ffn_branch: Branch


@dataclass(slots=True)
class FeedForward:
    """A gated feed-forward part."""

    gate_up: Any
    down: Any


@dataclass(slots=True)
class LayerMatrices:
    """What tokens are multiplied with in one layer."""

    qkv: Any
    attn_gate: Any | None
    attn_output: Any
    ffn: FeedForward | None
    experts: Any | None


@dataclass(slots=True)
class NormsOfExperts:
    """Of experts beside a feed-forward part, as `engine.model.spec.ExpertNorms` names them."""

    before: Any
    router: Any
    behind: Any
    ffn_behind: Any


@dataclass(frozen=True, slots=True)
class HostExperts:
    """A handle of the processor's operations, where the rest of the layer is a GPU's."""

    handle: Any
    streamed: Any | None = None
    """The same for the GPU, which they cross over to."""


@dataclass(slots=True)
class ModelWeights:
    """One decoder's weights as handles of an `Operations`; of a part of its layers, without what it lacks."""

    embedding: Any | None
    embedding_norm: Any | None
    layers: list[LayerWeights]
    output_norm: Any | None
    head: Any | None
    rotations: list[Rotation] = field(default_factory=list)
    nbytes: int = 0


def handles(weights: ModelWeights) -> Iterator[Any]:
    """All that hold memory of the operations that made them."""
    around = (weights.embedding, weights.embedding_norm, weights.output_norm, weights.head)
    yield from (one for one in around if one is not None)
    for layer in weights.layers:
        for part in fields(layer):
            value = getattr(layer, part.name)
            if isinstance(value, FeedForward | NormsOfExperts):
                yield from (getattr(value, one.name) for one in fields(value))
                continue
            if isinstance(value, list):
                yield from value
                continue
            if isinstance(value, LayerAttention):
                value = value.qk_norm
            elif isinstance(value, Branch):
                value = value.norm
            if value is not None and not isinstance(value, HostExperts):
                yield value
