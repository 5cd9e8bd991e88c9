"""Write a GGUF file with the shapes of a real model and random weights, for speed measurements.

    python -m tests.perf.make_shapes --shapes qwen3-8b --quant q4_k_m --out /tmp/model.gguf

Speed does not depend on the values, so blocks are random bytes whose scales give each matrix a
spread of about 1/sqrt(columns): activations stay near 1 through all layers. Matrices of one kind and
width are cut from one pool of blocks, so that a file takes little longer than writing it. `llama-0.1b`
has the built-in model's vocabulary and chat template and can be chatted with (it answers nonsense).
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

from tests.support.tiny_blocks import random_tensor, set_scales
from tests.support.tiny_gguf import FILE_TYPES, write_vocabulary
from tests.support.tiny_vocab import CONTROL, NORMAL, UNUSED, Vocabulary, byte_alphabet

BUILTIN = Path(__file__).parents[2] / "app" / "builtin" / "pocket-46m-q5_k_s.gguf"
POOL = 1 << 25
"""Values of one pool of blocks."""


@dataclass(frozen=True)
class Shapes:
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
    experts: int = 0
    """0: the feed-forward part is dense, of width `ffn`; else that is the width of one expert."""
    used: int = 0
    window: int = 0

    @property
    def qk_norm(self) -> bool:
        """Whether heads of q and k have a norm."""
        return self.arch in ("qwen3", "qwen3moe", "gemma3")


SHAPES = {
    "qwen3-0.6b": Shapes("qwen3", 28, 1024, 3072, 16, 8, 128, 151_936, 40_960, 1e6, True),
    "qwen3-4b": Shapes("qwen3", 36, 2560, 9728, 32, 8, 128, 151_936, 40_960, 1e6, True),
    "qwen3-8b": Shapes("qwen3", 36, 4096, 12_288, 32, 8, 128, 151_936, 40_960, 1e6, False),
    "qwen3-30b-a3b": Shapes(
        "qwen3moe", 48, 2048, 768, 32, 4, 128, 151_936, 40_960, 1e6, False, experts=128, used=8
    ),
    "gpt-oss-20b": Shapes(
        "gpt-oss",
        24,
        2880,
        2880,
        64,
        8,
        64,
        201_088,
        131_072,
        150_000.0,
        False,
        experts=32,
        used=4,
        window=128,
    ),
    "gemma3-12b": Shapes("gemma3", 48, 3840, 15_360, 16, 8, 256, 262_208, 131_072, 1e6, True, window=1024),
    "tiny-moe": Shapes("qwen3moe", 4, 256, 256, 4, 2, 64, 2048, 2048, 1e6, False, experts=8, used=2),
    "tiny-oss": Shapes("gpt-oss", 2, 96, 96, 4, 2, 32, 2048, 2048, 1e6, False, experts=8, used=2, window=64),
    "tiny": Shapes("qwen3", 8, 256, 512, 4, 2, 64, 2048, 2048, 1e6, False),
    "tiny-wide": Shapes("qwen3", 2, 64, 128, 2, 1, 32, 151_936, 2048, 1e6, True),
    "llama-0.1b": Shapes("llama", 12, 768, 2048, 12, 4, 64, 12_288, 2048, 1e4, False),
}

QUANTS = {
    "q4_k_m": ("Q4_K", "Q6_K"),
    "q5_k_m": ("Q5_K", "Q6_K"),
    "q8_0": ("Q8_0", "Q8_0"),
    "mxfp4": ("MXFP4", "Q8_0"),
    "f16": ("F16", "F16"),
}
"""The element type of most matrices and of the ones that deserve more bits."""


def tensor_type(name: str, layer: int, shapes: Shapes, quant: str) -> str:
    """The element type that llama.cpp's quantiser would give this matrix."""
    base, better = QUANTS[quant]
    if name == "output" or (name == "token_embd" and shapes.tied):
        return better
    if name == "ffn_gate_inp":
        return "F32"
    if base == "MXFP4":
        return base if name.endswith("_exps") else better
    if name in ("attn_v", "ffn_down", "ffn_down_exps") and deserves_more_bits(layer, shapes.layers):
        return better
    return base


def deserves_more_bits(layer: int, layers: int) -> bool:
    """The first and last eighth of the layers, and every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def matrices(shapes: Shapes) -> Iterator[tuple[str, int, int, int]]:
    """(name, layer or -1, rows, columns) of every matrix, in file order."""
    q_size, kv_size = shapes.heads * shapes.head_dim, shapes.kv_heads * shapes.head_dim
    yield "token_embd", -1, shapes.vocab_size, shapes.width
    for layer in range(shapes.layers):
        yield "attn_q", layer, q_size, shapes.width
        yield "attn_k", layer, kv_size, shapes.width
        yield "attn_v", layer, kv_size, shapes.width
        yield "attn_output", layer, shapes.width, q_size
        suffix, count = ("_exps", shapes.experts) if shapes.experts else ("", 1)
        if shapes.experts:
            yield "ffn_gate_inp", layer, shapes.experts, shapes.width
        yield f"ffn_gate{suffix}", layer, count * shapes.ffn, shapes.width
        yield f"ffn_up{suffix}", layer, count * shapes.ffn, shapes.width
        yield f"ffn_down{suffix}", layer, count * shapes.width, shapes.ffn
    if not shapes.tied:
        yield "output", -1, shapes.vocab_size, shapes.width


def vectors(shapes: Shapes) -> Iterator[tuple[str, int]]:
    """(tensor name, size) of every norm."""
    after = "post_attention_norm" if shapes.arch == "gpt-oss" else "ffn_norm"
    yield "output_norm.weight", shapes.width
    for layer in range(shapes.layers):
        yield f"blk.{layer}.attn_norm.weight", shapes.width
        yield f"blk.{layer}.{after}.weight", shapes.width
        if shapes.arch == "gemma3":
            yield f"blk.{layer}.post_attention_norm.weight", shapes.width
            yield f"blk.{layer}.post_ffw_norm.weight", shapes.width
        if shapes.qk_norm:
            yield f"blk.{layer}.attn_q_norm.weight", shapes.head_dim
            yield f"blk.{layer}.attn_k_norm.weight", shapes.head_dim


def biases(shapes: Shapes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(tensor name, shape) of every bias, and of attention's sinks."""
    if shapes.arch != "gpt-oss":
        return
    kv_size, count = shapes.kv_heads * shapes.head_dim, shapes.experts
    for layer in range(shapes.layers):
        yield f"blk.{layer}.attn_sinks.weight", (shapes.heads,)
        yield f"blk.{layer}.attn_q.bias", (shapes.heads * shapes.head_dim,)
        yield f"blk.{layer}.attn_k.bias", (kv_size,)
        yield f"blk.{layer}.attn_v.bias", (kv_size,)
        yield f"blk.{layer}.attn_output.bias", (shapes.width,)
        yield f"blk.{layer}.ffn_gate_inp.bias", (count,)
        yield f"blk.{layer}.ffn_gate_exps.bias", (count, shapes.ffn)
        yield f"blk.{layer}.ffn_up_exps.bias", (count, shapes.ffn)
        yield f"blk.{layer}.ffn_down_exps.bias", (count, shapes.width)


def check_widths(name: str, quant: str) -> None:
    """Raise ValueError where a matrix is no whole number of blocks wide: its file would have other shapes."""
    width = unfilled_width(SHAPES[name], quant)
    if width:
        fitting = [other for other in QUANTS if not unfilled_width(SHAPES[name], other)]
        raise ValueError(
            f"--quant {quant}: its blocks do not fill the {width} columns of {name}; "
            f"use {' or '.join(fitting)}"
        )


def unfilled_width(shapes: Shapes, quant: str) -> int:
    """The columns of the first matrix that is no whole number of blocks wide, 0 where there is none."""
    for name, layer, _, cols in matrices(shapes):
        elements, _ = GGML_QUANT_SIZES[GGMLQuantizationType[tensor_type(name, layer, shapes, quant)]]
        if cols % elements:
            return cols
    return 0


def make_shapes(path: str | Path, name: str, quant: str, seed: int = 0) -> Path:
    """Write the file; returns its path. Raise ValueError where the type's blocks do not fill a row."""
    shapes = SHAPES[name]
    check_widths(name, quant)
    writer = GGUFWriter(str(path), shapes.arch)
    _write_settings(writer, shapes, f"{name} random {quant}", quant)
    write_vocabulary(
        writer, builtin_vocabulary() if shapes.arch == "llama" else wide_vocabulary(shapes.vocab_size)
    )
    plan = [(name, size, "F32", 1, size) for name, size in vectors(shapes)]
    for name, layer, rows, cols in matrices(shapes):
        full = f"{name}.weight" if layer < 0 else f"blk.{layer}.{name}.weight"
        plan.append((full, rows * cols, tensor_type(name, layer, shapes, quant), rows, cols))
    zeros = list(biases(shapes))
    for full, bias_shape in zeros:
        _describe(writer, full, bias_shape, "F32")
    for full, size, kind, rows, cols in plan:
        shape = (size,) if rows == 1 else (rows, cols)
        if "_exps.weight" in full:
            shape = (shapes.experts, rows // shapes.experts, cols)
        _describe(writer, full, shape, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout is not None
    out, pools = writer.fout[0], _Pools(np.random.default_rng(seed))
    for _, bias_shape in zeros:
        writer.write_padding(out, out.tell())
        out.write(np.zeros(bias_shape, np.float32).tobytes())
    for _, _, kind, rows, cols in plan:
        writer.write_padding(out, out.tell())
        if rows == 1:
            out.write(np.ones(cols, np.float32).tobytes())
        else:
            pools.write(out, kind, rows, cols)
    writer.write_padding(out, out.tell())
    writer.close()
    return Path(path)


def wide_vocabulary(size: int) -> Vocabulary:
    """A byte-level vocabulary of `size` tokens: bytes, pairs, then triples; specials at the end.

    Pairs and triples are of what ASCII prints: of a random answer nearly every token is text at once.
    """
    letters = list("Ġetaoinshrdlucmfwypvbgkjxqz")
    printed = letters + [symbol for symbol in byte_alphabet() if symbol.isascii() and symbol not in letters]
    alphabet = printed + [symbol for symbol in byte_alphabet() if symbol not in printed]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    pairs = list(product(printed, printed))
    triples = ((left + right, third) for (left, right), third in product(pairs, printed))
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


def _write_settings(writer: GGUFWriter, shapes: Shapes, name: str, quant: str) -> None:
    writer.add_name(name)
    writer.add_block_count(shapes.layers)
    writer.add_context_length(shapes.context_length)
    writer.add_embedding_length(shapes.width)
    writer.add_feed_forward_length(shapes.ffn)
    writer.add_head_count(shapes.heads)
    writer.add_head_count_kv(shapes.kv_heads)
    writer.add_key_length(shapes.head_dim)
    writer.add_value_length(shapes.head_dim)
    writer.add_rope_dimension_count(shapes.head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(shapes.rope_base)
    writer.add_vocab_size(shapes.vocab_size)
    if shapes.experts:
        writer.add_expert_count(shapes.experts)
        writer.add_expert_used_count(shapes.used)
        writer.add_expert_feed_forward_length(shapes.ffn)
    if shapes.window:
        writer.add_sliding_window(shapes.window)
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


class _Pools:
    """Random blocks by element type and width, made once and cut from ever new places."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._pools: dict[tuple[str, int], np.ndarray] = {}

    def write(self, out: IO[bytes], kind: str, rows: int, cols: int) -> None:
        """Write one matrix."""
        if (kind, cols) not in self._pools:
            self._pools[kind, cols] = self._make(kind, cols)
        pool = self._pools[kind, cols]
        left = rows * cols // GGML_QUANT_SIZES[GGMLQuantizationType[kind]][0]
        start = int(self._rng.integers(len(pool)))
        while left:
            piece = pool[start : start + left]
            out.write(piece.data)
            left, start = left - len(piece), 0

    def _make(self, kind: str, cols: int) -> np.ndarray:
        """Raw bytes [blocks, bytes of a block]."""
        elements, nbytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
        # An odd number: a matrix that goes round the pool meets other columns, not its own rows again.
        count = POOL // elements - 1
        if kind in ("F16", "F32"):
            return random_tensor(self._rng, kind, (count, 1), cols**-0.5).view(np.uint8)
        blocks = np.frombuffer(self._rng.bytes(count * nbytes), np.uint8).reshape(-1, nbytes).copy()
        set_scales(self._rng, blocks, kind, cols**-0.5)
        return blocks


def main() -> None:
    """Read the arguments and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", choices=SHAPES, required=True)
    parser.add_argument("--quant", choices=QUANTS, default="q4_k_m")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    try:
        check_widths(args.shapes, args.quant)
    except ValueError as error:
        parser.error(str(error))
    started = time.perf_counter()
    path = make_shapes(args.out, args.shapes, args.quant, args.seed)
    print(f"{path}: {path.stat().st_size / 1e6:,.0f} MB in {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
