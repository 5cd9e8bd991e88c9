"""Write a GGUF file with the shapes of a real model and random weights, for speed measurements.

    python -m tests.perf.make_model --preset qwen3-0.6b --quant q4_k_m --out /tmp/model.gguf

Speed does not depend on the values, so blocks are random bytes with plausible scales; tensors are
written in pieces, so that an 8 B file needs little memory. `llama-0.1b` has the built-in model's
vocabulary and chat template and can be chatted with (it answers nonsense).
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import IO

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFWriter

from tests.tiny_blocks import random_tensor, set_scales
from tests.tiny_gguf import FILE_TYPES, write_vocabulary
from tests.tiny_vocab import CONTROL, NORMAL, UNUSED, Vocabulary, byte_alphabet

BUILTIN = Path(__file__).parents[2] / "app" / "builtin" / "pocket-44m-q5_k_m.gguf"
PIECE = 8 << 20
"""Values that are made and written at a time."""


@dataclass(frozen=True)
class Preset:
    """The shapes of one model."""

    arch: str
    layers: int
    width: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    rope_base: float
    tied: bool


PRESETS = {
    "qwen3-0.6b": Preset("qwen3", 28, 1024, 3072, 16, 8, 128, 151_936, 40_960, 1e6, True),
    "qwen3-8b": Preset("qwen3", 36, 4096, 12_288, 32, 8, 128, 151_936, 40_960, 1e6, False),
    "llama-0.1b": Preset("llama", 12, 768, 2048, 12, 4, 64, 12_288, 2048, 1e4, False),
}

QUANTS = {
    "q4_k_m": ("Q4_K", "Q6_K"),
    "q5_k_m": ("Q5_K", "Q6_K"),
    "q8_0": ("Q8_0", "Q8_0"),
    "f16": ("F16", "F16"),
}
"""The element type of most matrices and of the ones that deserve more bits."""


def tensor_type(name: str, layer: int, preset: Preset, quant: str) -> str:
    """The element type that llama.cpp's quantiser would give this matrix."""
    base, better = QUANTS[quant]
    if name == "output" or (name == "token_embd" and preset.tied):
        return better
    if name in ("attn_v", "ffn_down") and deserves_more_bits(layer, preset.layers):
        return better
    return base


def deserves_more_bits(layer: int, layers: int) -> bool:
    """The first and last eighth of the layers, and every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def matrices(preset: Preset) -> Iterator[tuple[str, int, int, int]]:
    """(name, layer or -1, rows, columns) of every matrix, in file order."""
    q_size, kv_size = preset.heads * preset.head_dim, preset.kv_heads * preset.head_dim
    yield "token_embd", -1, preset.vocab_size, preset.width
    for layer in range(preset.layers):
        yield "attn_q", layer, q_size, preset.width
        yield "attn_k", layer, kv_size, preset.width
        yield "attn_v", layer, kv_size, preset.width
        yield "attn_output", layer, preset.width, q_size
        yield "ffn_gate", layer, preset.ffn, preset.width
        yield "ffn_up", layer, preset.ffn, preset.width
        yield "ffn_down", layer, preset.width, preset.ffn
    if not preset.tied:
        yield "output", -1, preset.vocab_size, preset.width


def vectors(preset: Preset) -> Iterator[tuple[str, int]]:
    """(tensor name, size) of every norm."""
    yield "output_norm.weight", preset.width
    for layer in range(preset.layers):
        yield f"blk.{layer}.attn_norm.weight", preset.width
        yield f"blk.{layer}.ffn_norm.weight", preset.width
        if preset.arch == "qwen3":
            yield f"blk.{layer}.attn_q_norm.weight", preset.head_dim
            yield f"blk.{layer}.attn_k_norm.weight", preset.head_dim


def make_model(path: str | Path, preset_name: str, quant: str, seed: int = 0) -> Path:
    """Write the file; returns its path."""
    preset, rng = PRESETS[preset_name], np.random.default_rng(seed)
    writer = GGUFWriter(str(path), preset.arch)
    _write_settings(writer, preset, f"{preset_name} random {quant}", quant)
    write_vocabulary(
        writer, builtin_vocabulary() if preset.arch == "llama" else wide_vocabulary(preset.vocab_size)
    )
    plan = [(name, size, "F32", 1, size) for name, size in vectors(preset)]
    for name, layer, rows, cols in matrices(preset):
        full = f"{name}.weight" if layer < 0 else f"blk.{layer}.{name}.weight"
        plan.append((full, rows * cols, tensor_type(name, layer, preset, quant), rows, cols))
    for full, size, kind, rows, cols in plan:
        shape = (size,) if rows == 1 else (rows, cols)
        _describe(writer, full, shape, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout is not None
    out = writer.fout[0]
    for full, _, kind, rows, cols in plan:
        writer.write_padding(out, out.tell())
        _write_values(out, rng, kind, rows, cols, is_norm="norm" in full)
    writer.write_padding(out, out.tell())
    writer.close()
    return Path(path)


def wide_vocabulary(size: int) -> Vocabulary:
    """A byte-level vocabulary of `size` tokens: bytes, all pairs, then triples; specials at the end."""
    letters = list("Ġetaoinshrdlucmfwypvbgkjxqz")
    alphabet = letters + [symbol for symbol in byte_alphabet() if symbol not in letters]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    pairs = list(product(alphabet, alphabet))
    triples = ((left + right, third) for (left, right), third in product(pairs, alphabet))
    merges = list(islice((*pairs, *islice(triples, size)), size - 256 - 293))
    tokens = alphabet + [left + right for left, right in merges] + special
    types = [NORMAL] * (len(tokens) - len(special)) + [CONTROL] * len(special)
    missing = size - len(tokens)
    return Vocabulary(
        "gpt2",
        tokens + [f"[PAD{n}]" for n in range(missing)],
        types + [UNUSED] * missing,
        pre="qwen2",
        merges=[f"{left} {right}" for left, right in merges],
        bos=tokens.index(special[0]),
        eos=tokens.index(special[2]),
    )


def builtin_vocabulary() -> Vocabulary:
    """The built-in model's tokenizer and chat template."""
    fields = GGUFReader(str(BUILTIN)).fields

    def value(name: str) -> list:
        return fields["tokenizer." + name].contents()

    return Vocabulary(
        "gpt2",
        value("ggml.tokens"),
        value("ggml.token_type"),
        pre=str(value("ggml.pre")),
        merges=value("ggml.merges"),
        eos=int(str(value("ggml.eos_token_id"))),
        chat_template=str(value("chat_template")),
    )


def _write_settings(writer: GGUFWriter, preset: Preset, name: str, quant: str) -> None:
    writer.add_name(name)
    writer.add_block_count(preset.layers)
    writer.add_context_length(preset.context_length)
    writer.add_embedding_length(preset.width)
    writer.add_feed_forward_length(preset.ffn)
    writer.add_head_count(preset.heads)
    writer.add_head_count_kv(preset.kv_heads)
    writer.add_key_length(preset.head_dim)
    writer.add_value_length(preset.head_dim)
    writer.add_rope_dimension_count(preset.head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(preset.rope_base)
    writer.add_vocab_size(preset.vocab_size)
    writer.add_quantization_version(2)
    writer.add_file_type(FILE_TYPES[quant.upper()])


def _describe(writer: GGUFWriter, name: str, shape: tuple[int, ...], kind: str) -> None:
    elements, nbytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    total = int(np.prod(shape)) // elements * nbytes
    if kind in ("F32", "F16"):
        writer.add_tensor_info(name, shape, np.dtype(np.float32 if kind == "F32" else np.float16), total)
    else:
        raw_shape = (*shape[:-1], shape[-1] // elements * nbytes)
        raw_type = GGMLQuantizationType[kind]
        writer.add_tensor_info(name, raw_shape, np.dtype(np.uint8), total, raw_dtype=raw_type)


def _write_values(
    out: IO[bytes], rng: np.random.Generator, kind: str, rows: int, cols: int, *, is_norm: bool
) -> None:
    if is_norm:
        out.write(np.ones(cols, np.float32).tobytes())
        return
    step = max(1, PIECE // cols)
    for start in range(0, rows, step):
        count = min(step, rows - start)
        out.write(_values(rng, kind, count, cols).tobytes())


def _values(rng: np.random.Generator, kind: str, rows: int, cols: int) -> np.ndarray:
    std = cols**-0.5
    if kind == "F16":
        return random_tensor(rng, kind, (rows, cols), std)
    elements, nbytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = np.frombuffer(rng.bytes(rows * cols // elements * nbytes), np.uint8).reshape(-1, nbytes).copy()
    set_scales(rng, blocks, kind, std)
    return blocks


def main() -> None:
    """Read the arguments and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", choices=PRESETS, required=True)
    parser.add_argument("--quant", choices=QUANTS, default="q4_k_m")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    started = time.perf_counter()
    path = make_model(args.out, args.preset, args.quant, args.seed)
    print(f"{path}: {path.stat().st_size / 1e6:,.0f} MB in {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
