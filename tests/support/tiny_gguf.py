"""Small random-weight GGUF files of every supported architecture and element type.

`make_tiny(path, "llama", quant="Q4_K", rope="yarn")` writes a complete model: weights, settings,
tokenizer and chat template. The same arguments give the same weights everywhere (NumPy's seeded
generator); `weights_hash` proves it. `dequantised_f32_copy` writes the weights of any such file as
F32, for engines that round activations when weights are quantised.
"""

import hashlib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize

from tests.support.tiny_blocks import block_size, random_tensor
from tests.support.tiny_vocab import Vocabulary, bpe_vocabulary, spm_vocabulary

MIXES = {"Q4_K_M": ("Q4_K", "Q6_K"), "Q5_K_M": ("Q5_K", "Q6_K")}
"""Mixed files: most weights of the first type; embeddings, output, attn_v, ffn_down of the second."""

FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10}
FILE_TYPES |= {"Q3_K": 12, "Q4_K": 14, "Q4_K_M": 15, "Q5_K": 16, "Q5_K_M": 17, "Q6_K": 18, "IQ4_NL": 25}
FILE_TYPES |= {"IQ4_XS": 30, "BF16": 32, "MXFP4": 38}


@dataclass(frozen=True)
class TinyRecipe:
    """The arguments of `make_tiny`; equal recipes give equal weights."""

    arch: str
    layers: int = 2
    width: int = 256
    ffn: int = 512
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    quant: str = "F32"
    """An element type, or a mix such as "Q4_K_M"."""
    seed: int = 0
    vocab: str = "bpe"
    """"bpe" (gpt2 type) or "spm" (llama type)."""
    vocab_size: int = 384
    pre: str = "qwen2"
    context_length: int = 512
    rope: str = "none"
    """"none", "linear", "yarn" (both factor 4) or "llama3" (a rope_freqs tensor)."""
    rope_base: float = 10000.0
    tied: bool = False
    """No output.weight: the embeddings are used."""
    bias: bool = False
    """For llama: biases on q, k, v and the attention output. qwen2 always has them on q, k, v."""
    ffn_bias: bool = False
    """For llama: biases on gate, up and down."""


def make_tiny(path: str | Path, arch: str, vocabulary: Vocabulary | None = None, **options: Any) -> Path:
    """Write the model that `TinyRecipe(arch, **options)` describes, or with another vocabulary; its path."""
    recipe = TinyRecipe(arch, **options)
    writer = GGUFWriter(str(path), arch)
    _write_settings(writer, recipe)
    write_vocabulary(writer, vocabulary or _vocabulary(recipe))
    for name, (raw, type_name) in tiny_weights(recipe).items():
        add_weights(writer, name, raw, type_name)
    _finish(writer)
    return Path(path)


def make_from_recipe(path: str | Path, recipe: dict[str, Any]) -> Path:
    """`make_tiny` for a recipe kept as plain data; unknown keys raise ValueError."""
    unknown = recipe.keys() - {field.name for field in fields(TinyRecipe)}
    if unknown:
        raise ValueError(f"unknown keys in the recipe: {sorted(unknown)}")
    return make_tiny(path, **recipe)


def recipe_dict(recipe: TinyRecipe) -> dict[str, Any]:
    """A recipe as plain data for JSON."""
    return asdict(recipe)


def tiny_weights(recipe: TinyRecipe) -> dict[str, tuple[np.ndarray, str]]:
    """Every tensor of the model: name → (raw weights, element type), in a fixed order."""
    rng = np.random.default_rng(recipe.seed)
    weights: dict[str, tuple[np.ndarray, str]] = {}

    def matrix(name: str, rows: int, cols: int, std: float | None = None) -> None:
        kind = element_type(recipe.quant, name)
        if cols % block_size(kind):
            raise ValueError(f"{name}: rows of {cols} values cannot be {kind}")
        weights[name] = (random_tensor(rng, kind, (rows, cols), std or cols**-0.5), kind)

    def vector(name: str, size: int, mean: float, std: float) -> None:
        values = mean + std * rng.standard_normal(size, dtype=np.float32)
        weights[name] = (values.astype(np.float32), "F32")

    matrix("token_embd.weight", recipe.vocab_size, recipe.width, 0.2)
    for layer in range(recipe.layers):
        _layer_weights(recipe, f"blk.{layer}.", matrix, vector)
    vector("output_norm.weight", recipe.width, 1.0, 0.1)
    if not recipe.tied:
        matrix("output.weight", recipe.vocab_size, recipe.width, 0.2)
    if recipe.rope == "llama3":
        weights["rope_freqs.weight"] = (llama3_factors(recipe.head_dim, recipe.rope_base), "F32")
    return weights


def element_type(quant: str, tensor: str) -> str:
    """The element type of a matrix in a file of this quantisation."""
    if quant not in MIXES:
        return quant
    better = ("token_embd", "output.weight", "attn_v", "ffn_down")
    return (
        MIXES[quant][1]
        if any(part in tensor and "attn_output" not in tensor for part in better)
        else MIXES[quant][0]
    )


def llama3_factors(head_dim: int, base: float, factor: float = 8.0, original: int = 64) -> np.ndarray:
    """Llama 3's frequency factors (float32 [head_dim / 2]) for a low and high factor of 1 and 4."""
    wavelength = 2 * np.pi * base ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    smooth = np.clip((original / wavelength - 1.0) / 3.0, 0.0, 1.0)
    return (1.0 / ((1.0 - smooth) / factor + smooth)).astype(np.float32)


def dequantised_f32_copy(source: str | Path, target: str | Path) -> Path:
    """Write `source` (any GGUF) with all weights as F32, dequantised by gguf-py."""
    reader = GGUFReader(str(source))
    writer = GGUFWriter(str(target), reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        sub_type = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type)
    writer.add_file_type(0)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type)))
    _finish(writer)
    return Path(target)


def weights_hash(path: str | Path) -> str:
    """SHA-256 over every tensor's name, shape and dequantised float32 values, in order of names."""
    digest = hashlib.sha256()
    for tensor in sorted(GGUFReader(str(path)).tensors, key=lambda item: item.name):
        values = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype="<f4")
        digest.update(f"{tensor.name}{[int(size) for size in tensor.shape]}".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()


def write_vocabulary(writer: GGUFWriter, vocabulary: Vocabulary) -> None:
    """Add a tokenizer's metadata."""
    writer.add_tokenizer_model(vocabulary.model)
    if vocabulary.pre is not None:
        writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    if vocabulary.scores is not None:
        writer.add_token_scores(vocabulary.scores)
    if vocabulary.merges is not None:
        writer.add_token_merges(vocabulary.merges)
    for add, value in (
        (writer.add_bos_token_id, vocabulary.bos),
        (writer.add_eos_token_id, vocabulary.eos),
        (writer.add_unk_token_id, vocabulary.unknown),
    ):
        if value is not None:
            add(value)
    writer.add_add_bos_token(vocabulary.add_bos)
    if vocabulary.chat_template is not None:
        writer.add_chat_template(vocabulary.chat_template)


def add_weights(writer: GGUFWriter, name: str, raw: np.ndarray, type_name: str) -> None:
    """Add one tensor; raw uint8 rows keep the shape that their bytes stand for."""
    raw_type = GGMLQuantizationType[type_name] if raw.dtype == np.uint8 else None
    writer.add_tensor(name, raw, raw_dtype=raw_type)


def _layer_weights(recipe: TinyRecipe, prefix: str, matrix: Any, vector: Any) -> None:
    width, ffn = recipe.width, recipe.ffn
    q_size, kv_size = recipe.heads * recipe.head_dim, recipe.kv_heads * recipe.head_dim
    vector(prefix + "attn_norm.weight", width, 1.0, 0.1)
    matrix(prefix + "attn_q.weight", q_size, width, 1.5 * width**-0.5)
    matrix(prefix + "attn_k.weight", kv_size, width, 1.5 * width**-0.5)
    matrix(prefix + "attn_v.weight", kv_size, width)
    matrix(prefix + "attn_output.weight", width, q_size)
    if recipe.arch == "qwen2" or recipe.bias:
        vector(prefix + "attn_q.bias", q_size, 0.0, 0.5)
        vector(prefix + "attn_k.bias", kv_size, 0.0, 0.5)
        vector(prefix + "attn_v.bias", kv_size, 0.0, 0.5)
    if recipe.bias and recipe.arch == "llama":
        vector(prefix + "attn_output.bias", width, 0.0, 0.5)
    if recipe.arch == "qwen3":
        vector(prefix + "attn_q_norm.weight", recipe.head_dim, 1.0, 0.2)
        vector(prefix + "attn_k_norm.weight", recipe.head_dim, 1.0, 0.2)
    vector(prefix + "ffn_norm.weight", width, 1.0, 0.1)
    matrix(prefix + "ffn_gate.weight", ffn, width)
    matrix(prefix + "ffn_up.weight", ffn, width)
    matrix(prefix + "ffn_down.weight", width, ffn)
    if recipe.ffn_bias:
        vector(prefix + "ffn_gate.bias", ffn, 0.0, 0.5)
        vector(prefix + "ffn_up.bias", ffn, 0.0, 0.5)
        vector(prefix + "ffn_down.bias", width, 0.0, 0.5)


def _vocabulary(recipe: TinyRecipe) -> Vocabulary:
    if recipe.vocab == "spm":
        return spm_vocabulary(recipe.vocab_size)
    return bpe_vocabulary(recipe.vocab_size, recipe.pre)


def _write_settings(writer: GGUFWriter, recipe: TinyRecipe) -> None:
    arch = recipe.arch
    writer.add_name(f"tiny {arch} {recipe.quant}")
    writer.add_block_count(recipe.layers)
    writer.add_context_length(recipe.context_length)
    writer.add_embedding_length(recipe.width)
    writer.add_feed_forward_length(recipe.ffn)
    writer.add_head_count(recipe.heads)
    writer.add_head_count_kv(recipe.kv_heads)
    if arch == "qwen3" or recipe.head_dim * recipe.heads != recipe.width:
        writer.add_key_length(recipe.head_dim)
        writer.add_value_length(recipe.head_dim)
    if arch == "llama":
        writer.add_rope_dimension_count(recipe.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(recipe.rope_base)
    writer.add_vocab_size(recipe.vocab_size)
    if recipe.rope in ("linear", "yarn"):
        writer.add_string(f"{arch}.rope.scaling.type", recipe.rope)
        writer.add_rope_scaling_factor(4.0)
    if recipe.rope == "yarn":
        writer.add_rope_scaling_orig_ctx_len(recipe.context_length // 4)
    writer.add_quantization_version(2)
    if recipe.quant in FILE_TYPES:
        writer.add_file_type(FILE_TYPES[recipe.quant])


def _finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
