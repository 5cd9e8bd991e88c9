"""The configuration of one decoder, read from GGUF metadata and checked in this one place.

Keys follow the GGUF specification: `<arch>.block_count` and so on. Values that the decoder cannot
honour are refused by name, never ignored.
"""

from engine.api.errors import ModelFileError, UnsupportedModelError
from engine.gguf.file import GGUFFile
from engine.model.architectures import refusal
from engine.model.families import FAMILIES, supported_architectures
from engine.model.family import Family
from engine.model.keys import Keys
from engine.model.rope_config import read_rope
from engine.model.spec import AttentionSpec, LayerSpec, ModelConfig


def read_config(file: GGUFFile, context_length: int | None = None) -> ModelConfig:
    """Read and check the decoder's configuration, for contexts of up to `context_length` tokens.

    Raises `UnsupportedModelError` for an architecture or option outside the table and
    `ModelFileError` for missing or contradictory values.
    """
    family = FAMILIES.get(file.architecture)
    if family is None:
        raise UnsupportedModelError(
            f"{file.path}: general.architecture: {refusal(file.architecture)}. "
            f"These run: {supported_architectures()}."
        )
    keys = Keys(file)
    made = family.describe(keys, _plain(keys, family, context_length))
    keys.refuse_unread()
    return made


def _plain(keys: Keys, family: Family, context_length: int | None) -> ModelConfig:
    """The decoder that most families are: pre-norm attention and gated feed-forward, all layers alike."""
    num_layers = _num_layers(keys)
    hidden = keys.positive("embedding_length")
    attention = _attention(keys, family, num_layers, hidden)
    sizes = keys.per_layer("feed_forward_length", num_layers)
    eps_key = "attention.layer_norm_epsilon" if family.centred else "attention.layer_norm_rms_epsilon"
    eps = keys.number(eps_key)
    if eps < 0.0:
        raise keys.error(eps_key, f"{eps} is negative")
    longest = keys.positive("context_length")
    return ModelConfig(
        architecture=family.architecture,
        pairing=family.pairing,
        layers=_layers(attention, sizes),
        hidden_size=hidden,
        vocab_size=_vocab_size(keys.file),
        norm_eps=eps,
        centred=family.centred,
        context_length=min(longest, context_length or longest),
    )


def _layers(attention: list[AttentionSpec], sizes: tuple[int, ...]) -> tuple[LayerSpec, ...]:
    """Those that are alike are one object, so that what is made of them is made once."""
    made: dict[tuple[int, int], LayerSpec] = {}
    layers = []
    for one, size in zip(attention, sizes, strict=True):
        known = id(one), size
        if known not in made:
            made[known] = LayerSpec(one, size)
        layers.append(made[known])
    return tuple(layers)


def _attention(keys: Keys, family: Family, num_layers: int, hidden: int) -> list[AttentionSpec]:
    heads = keys.per_layer("attention.head_count", num_layers)
    kv_heads = keys.per_layer("attention.head_count_kv", num_layers, heads[0])
    for own, shared in zip(heads, kv_heads, strict=True):
        if own % shared:
            raise keys.error("attention.head_count_kv", f"{shared} does not divide {own} heads")
        if own > hidden:
            raise keys.error("attention.head_count", f"{own} heads are more than the width {hidden}")
    head_dim = keys.positive("attention.key_length", hidden // heads[0])
    value_dim = keys.positive("attention.value_length", head_dim)
    if value_dim != head_dim:
        raise keys.unsupported(
            "attention.value_length", f"{value_dim} differs from the key length {head_dim}"
        )
    if head_dim % 2:
        raise keys.error("attention.key_length", f"{head_dim} is odd and cannot be rotated in pairs")
    rope = read_rope(keys, head_dim, family.rope_scalings)
    scale = keys.number("attention.scale", 0.0) or head_dim**-0.5
    made = {
        sizes: AttentionSpec(*sizes, head_dim, scale, rope)
        for sizes in set(zip(heads, kv_heads, strict=True))
    }
    return [made[sizes] for sizes in zip(heads, kv_heads, strict=True)]


def _vocab_size(file: GGUFFile) -> int:
    """Rows of the embedding: the metadata's vocabulary may be padded differently."""
    info = file.tensors.get("token_embd.weight")
    if info is None or len(info.shape) != 2:
        raise ModelFileError(
            f"{file.path}: tensor token_embd.weight is missing or not a matrix; "
            "this is a vocabulary or an incomplete download, not a whole model."
        )
    return info.shape[0]


def _num_layers(keys: Keys) -> int:
    """Checked against the file before anything is as large as this number says."""
    layers, tensors = keys.positive("block_count"), len(keys.file.tensors)
    if layers > tensors:
        raise keys.error(
            "block_count", f"{layers} layers cannot be in a file of {tensors} tensors; it is damaged"
        )
    return layers
