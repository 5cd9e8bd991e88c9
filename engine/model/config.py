"""The typed configuration of one decoder, read from GGUF metadata and checked in this one place.

Keys follow the GGUF specification: `<arch>.block_count` and so on. Values that the decoder cannot
honour are refused by name, never ignored.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from engine.api.errors import ModelFileError, UnsupportedModelError
from engine.gguf.file import GGUFFile
from engine.model.arch import ARCHITECTURES, ArchSpec, supported_architectures


class RopeScaling(StrEnum):
    """How rotation frequencies are stretched for long contexts."""

    NONE = "none"
    LINEAR = "linear"
    YARN = "yarn"


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding parameters (Su et al. 2021; YaRN: Peng et al. 2023)."""

    base: float
    scaling: RopeScaling
    factor: float
    original_context: int
    attn_factor: float
    ext_factor: float
    beta_fast: float
    beta_slow: float


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shapes and constants of one decoder."""

    arch: ArchSpec
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    rms_eps: float
    attention_scale: float
    context_length: int
    rope: RopeConfig

    @property
    def q_size(self) -> int:
        """Width of all query heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads."""
        return self.num_kv_heads * self.head_dim


def read_config(file: GGUFFile) -> ModelConfig:
    """Read and check the decoder's configuration.

    Raises `UnsupportedModelError` for an architecture or option outside the table and
    `ModelFileError` for missing or contradictory values.
    """
    arch = _arch(file)
    reader = _Keys(file, arch.name)
    heads = reader.per_layer("attention.head_count")
    hidden = reader.positive("embedding_length")
    kv_heads = reader.per_layer("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise reader.error("attention.head_count_kv", f"{kv_heads} does not divide {heads} heads")
    if heads > hidden:
        raise reader.error("attention.head_count", f"{heads} heads are more than the width {hidden}")
    head_dim = reader.positive("attention.key_length", hidden // heads)
    _refuse_unsupported(reader, head_dim)
    scale = reader.number("attention.scale", 0.0)
    eps = reader.number("attention.layer_norm_rms_epsilon")
    if eps < 0.0:
        raise reader.error("attention.layer_norm_rms_epsilon", f"{eps} is negative")
    return ModelConfig(
        arch=arch,
        num_layers=_num_layers(reader),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_size=reader.per_layer("feed_forward_length"),
        vocab_size=_vocab_size(file),
        rms_eps=eps,
        attention_scale=scale or head_dim**-0.5,
        context_length=_context_length(reader),
        rope=_rope(reader),
    )


def _arch(file: GGUFFile) -> ArchSpec:
    spec = ARCHITECTURES.get(file.architecture)
    if spec is None:
        raise UnsupportedModelError(
            f"{file.path}: general.architecture: '{file.architecture}' is not supported; "
            f"supported are {supported_architectures()}. Choose a model of one of these types."
        )
    return spec


def _vocab_size(file: GGUFFile) -> int:
    """Rows of the embedding: the metadata's vocabulary may be padded differently."""
    info = file.tensors.get("token_embd.weight")
    if info is None or len(info.shape) != 2:
        raise ModelFileError(
            f"{file.path}: tensor token_embd.weight is missing or not a matrix; "
            "this is a vocabulary or an incomplete download, not a whole model."
        )
    return info.shape[0]


def _num_layers(reader: "_Keys") -> int:
    """Checked against the file before anything is as large as this number says."""
    layers, tensors = reader.positive("block_count"), len(reader.file.tensors)
    if layers > tensors:
        raise reader.error(
            "block_count", f"{layers} layers cannot be in a file of {tensors} tensors; it is damaged"
        )
    return layers


class _Keys:
    """Typed access to one architecture's keys with errors that name file and key."""

    def __init__(self, file: GGUFFile, arch: str) -> None:
        self.file = file
        self.arch = arch

    def positive(self, key: str, default: int | None = None) -> int:
        value = self.file.integer(f"{self.arch}.{key}", default)
        if value is None:
            raise self.error(key, "is missing")
        return self._size(key, value)

    def per_layer(self, key: str, default: int | None = None) -> int:
        """A size that a file may give once for each layer, as long as it is the same for all."""
        value = self.file.metadata.get(f"{self.arch}.{key}")
        if not isinstance(value, np.ndarray):
            return self.positive(key, default)
        sizes = set(value.tolist())
        if len(sizes) != 1 or value.dtype.kind not in "iu":
            raise self.unsupported(key, "layers of different sizes are not supported")
        return self._size(key, sizes.pop())

    def _size(self, key: str, value: int) -> int:
        if not 0 < value <= 1 << 31:
            raise self.error(key, f"{value} is not a positive size")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.file.number(f"{self.arch}.{key}", default)
        if value is None:
            raise self.error(key, "is missing")
        if not -1e30 < value < 1e30:
            raise self.error(key, f"{value} is not a finite number")
        return float(value)

    def text(self, key: str, default: str) -> str:
        return self.file.string(f"{self.arch}.{key}", default) or default

    def error(self, key: str, what: str) -> ModelFileError:
        return ModelFileError(f"{self.file.path}: {self.arch}.{key}: {what}.")

    def unsupported(self, key: str, what: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"{self.file.path}: {self.arch}.{key}: {what}.")


def _refuse_unsupported(reader: _Keys, head_dim: int) -> None:
    value_dim = reader.positive("attention.value_length", head_dim)
    if value_dim != head_dim:
        raise reader.unsupported(
            "attention.value_length", f"{value_dim} differs from the key length {head_dim}"
        )
    if head_dim % 2:
        raise reader.error("attention.key_length", f"{head_dim} is odd and cannot be rotated in pairs")
    rope_dim = reader.positive("rope.dimension_count", head_dim)
    if rope_dim != head_dim:
        raise reader.unsupported(
            "rope.dimension_count", f"{rope_dim} of {head_dim} dimensions; partial rotation is not supported"
        )
    experts = reader.file.integer(f"{reader.arch}.expert_count", 0)
    if experts:
        raise reader.unsupported("expert_count", f"{experts}; mixture-of-experts models are not supported")


def _context_length(reader: _Keys) -> int:
    """A sliding window caps the context: inside it, full attention computes the same."""
    window = reader.file.integer(f"{reader.arch}.attention.sliding_window", 0) or 0
    length = reader.positive("context_length")
    return min(length, window) if window > 0 else length


def _rope(reader: _Keys) -> RopeConfig:
    name = reader.text("rope.scaling.type", "none")
    try:
        scaling = RopeScaling(name)
    except ValueError:
        supported = ", ".join(RopeScaling)
        raise reader.unsupported(
            "rope.scaling.type",
            f"'{name}' is not supported; supported are {supported} and rope_freqs tensors",
        ) from None
    if reader.number("rope.scaling.yarn_log_multiplier", 0.0):
        raise reader.unsupported("rope.scaling.yarn_log_multiplier", "is not supported")
    # Old converters wrote linear scaling as `rope.scale_linear`, without a type.
    factor = reader.number("rope.scaling.factor", reader.number("rope.scale_linear", 0.0)) or 1.0
    if factor < 0:
        raise reader.error("rope.scaling.factor", f"{factor} is negative")
    if scaling is RopeScaling.NONE and factor != 1.0 and reader.text("rope.scaling.type", "") == "":
        scaling = RopeScaling.LINEAR
    ext_factor = reader.number("rope.scaling.yarn_ext_factor", -1.0)
    base = reader.number("rope.freq_base", 10000.0)
    if base <= 1.0:
        raise reader.error("rope.freq_base", f"{base} is not above 1")
    return RopeConfig(
        base=base,
        scaling=scaling,
        factor=factor,
        original_context=reader.positive(
            "rope.scaling.original_context_length", reader.positive("context_length")
        ),
        attn_factor=reader.number("rope.scaling.attn_factor", 1.0)
        * reader.number("rope.scaling.yarn_attn_factor", 1.0),
        ext_factor=ext_factor if ext_factor >= 0 else float(scaling is RopeScaling.YARN),
        beta_fast=_above_zero(reader, "rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=_above_zero(reader, "rope.scaling.yarn_beta_slow", 1.0),
    )


def _above_zero(reader: _Keys, key: str, default: float) -> float:
    value = reader.number(key, default)
    if value <= 0.0:
        raise reader.error(key, f"{value} is not above 0")
    return value
