"""One architecture's metadata keys, typed and checked, with errors that name file and key."""

import numpy as np

from engine.api.errors import ModelFileError, UnsupportedModelError
from engine.gguf.file import GGUFFile

_EFFECTS = frozenset(
    {
        "attention.causal",
        "attention.clamp_kqv",
        "attention.head_count_kv",
        "attention.key_length_mla",
        "attention.key_length_swa",
        "attention.max_alibi_bias",
        "attention.output_scale",
        "attention.scale",
        "attention.shared_kv_layers",
        "attention.sliding_window",
        "attention.temperature_scale",
        "attention.value_length_swa",
        "attn_logit_softcapping",
        "embedding_length_per_layer_input",
        "embedding_scale",
        "expert_count",
        "final_logit_softcapping",
        "logit_scale",
        "nextn_predict_layers",
        "residual_scale",
        "rope.dimension_count",
        "rope.dimension_count_swa",
        "rope.freq_base_swa",
        "rope.scaling.alpha",
        "rope.scaling.yarn_log_multiplier",
        "use_parallel_residual",
    }
)
"""Keys that change what a decoder computes: one that nobody asked for is refused unless it is neutral."""
_NEUTRAL = {"attention.causal": True}


class Keys:
    """The keys `<architecture>.*` of one file."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.arch = file.architecture
        self._asked: set[str] = set()

    def _name(self, key: str) -> str:
        self._asked.add(key)
        return f"{self.arch}.{key}"

    def positive(self, key: str, default: int | None = None) -> int:
        """A size; `ModelFileError` where it is missing without a default, or no positive number."""
        value = self.file.integer(self._name(key), default)
        if value is None:
            raise self.error(key, "is missing")
        return self._size(key, value)

    def count(self, key: str, default: int = 0) -> int:
        """A size that may be 0."""
        value = self.file.integer(self._name(key), default)
        return self._size(key, value) if value else 0

    def per_layer(self, key: str, layers: int, default: int | None = None) -> tuple[int, ...]:
        """A size of every layer, which a file may give once for all."""
        value = self.file.metadata.get(self._name(key))
        if not isinstance(value, np.ndarray):
            return (self.positive(key, default),) * layers
        if value.dtype.kind not in "iu" or len(value) < layers:
            raise self.error(key, f"is no list of whole numbers for {layers} layers")
        return tuple(self._size(key, size) for size in value[:layers].tolist())

    def windowed(self, layers: int, period: int | None = None) -> tuple[bool, ...]:
        """Which layers have a window: as the file lists them, or all but the last of every period.

        Without a period to go by, a file must say.
        """
        key = "attention.sliding_window_pattern"
        value = self.file.metadata.get(self._name(key))
        if isinstance(value, np.ndarray):
            if value.dtype.kind not in "biu" or len(value) < layers:
                raise self.error(key, f"is no list of yes or no for {layers} layers")
            return tuple(bool(one) for one in value[:layers].tolist())
        step = self.positive(key, period)
        return tuple(index % step < step - 1 for index in range(layers))

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value = self.file.number(self._name(key), default)
        if value is None:
            raise self.error(key, "is missing")
        if not -1e30 < value < 1e30:
            raise self.error(key, f"{value} is not a finite number")
        return float(value)

    def above_zero(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.number(key, default)
        if value <= 0.0:
            raise self.error(key, f"{value} is not above 0")
        return value

    def text(self, key: str, default: str) -> str:
        """A text, the default where it is empty."""
        return self.file.string(self._name(key), default) or default

    def flag(self, key: str, default: bool) -> bool:
        """Yes or no."""
        return self.file.boolean(self._name(key), default)

    def error(self, key: str, what: str) -> ModelFileError:
        """Of a damaged file."""
        return ModelFileError(f"{self.file.path}: {self.arch}.{key}: {what}.")

    def unsupported(self, key: str, what: str) -> UnsupportedModelError:
        """Of a file that needs what the decoder has not."""
        return UnsupportedModelError(f"{self.file.path}: {self.arch}.{key}: {what}.")

    def refuse_unread(self) -> None:
        """Raise `UnsupportedModelError` for a key that would change the result and that nobody read."""
        for key in sorted(_EFFECTS - self._asked):
            value = self.file.metadata.get(f"{self.arch}.{key}")
            if value is not None and not _is_neutral(key, value):
                shown = "a list" if isinstance(value, np.ndarray) else value
                raise self.unsupported(key, f"{shown}; '{self.arch}' models with it are not supported")

    def _size(self, key: str, value: int) -> int:
        if not 0 < value <= 1 << 31:
            raise self.error(key, f"{value} is not a positive size")
        return value


def _is_neutral(key: str, value: object) -> bool:
    if isinstance(value, np.ndarray):
        return not value.any()
    return value == _NEUTRAL.get(key, False) or (key.endswith("scale") and value == 1)
