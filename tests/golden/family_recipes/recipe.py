"""What one fixture is made from, and the sizes that most of them share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

VOCAB = 272
"""261 is the least that a byte-level vocabulary with chat tokens holds."""
WINDOW = 20
"""Shorter than the prompt of 48 tokens, and no multiple of a block."""

EPSILON = 2e-3
"""So large that another one shows."""

DENSE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 88,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": EPSILON,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@dataclass(frozen=True)
class Recipe:
    """One tiny model: a config.json as the hub spells it, and how its weights are drawn."""

    name: str
    """`general.architecture` of the converted file, and what sets this fixture apart."""
    model_class: str
    """The class of transformers that computes what is expected."""
    config: dict[str, Any]
    """config.json; `architectures` is added when it lacks one."""
    converted: dict[str, Any] = field(default_factory=dict)
    """Another config.json for the converter: the architecture has no class, and the model is computed by
    one that does the same under other names."""
    seed: int = 0
    """The first that is tried: later than 0 where float16's rounding alone took another expert, or much of
    a logit, with the first that was clear of ties."""
    gains: dict[str, float] = field(default_factory=dict)
    """Part of a tensor's name → what its usual size is multiplied by."""
    means: dict[str, float] = field(default_factory=dict)
    """Part of a vector's name → what is added to all of its values."""
    noise: float = 0.25
    """Size of what is added to norms, biases and other vectors."""
    renamed: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    """From the tensors of transformers' checkpoint to those of the converted architecture."""
    transposed: tuple[str, ...] = ()
    """Ends of names of stacked matrices that the hub keeps the other way round than transformers."""
    converter: dict[str, Any] = field(default_factory=dict)
    """Options of the converter."""
    answer: int = 64
    """Greedy tokens; fewer where a model has so many layers that each costs a test's time."""
    experts: str = ""
    """Element type that experts are stored in, where it can hold their values."""


def dense(model_type: str, **changed: Any) -> dict[str, Any]:
    """The shared sizes with another model type and changed values; None takes a shared key out."""
    merged = {**DENSE, "model_type": model_type, **changed}
    return {key: value for key, value in merged.items() if value is not None or key not in DENSE}
