"""Perplexity of a model file over a text, by the engine and by llama.cpp's float path on the same tokens.

    pip install llama-cpp-python
    python -m tests.perf.perplexity --model FILE --tokens 20000

llama.cpp gets the file's weights dequantised to F32, float32 keys and values and no flash attention: on a
quantised file its CPU path rounds activations to 8 bits. The engine computes in float32 too, and again in
bfloat16, as it does where a processor is faster at that. The text is cut into windows that start afresh;
without `--text` it is the language reference that Python carries for `help()`: the same for a version of it.
"""

import argparse
import hashlib
import math
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

from engine import Engine
from tests.support.tiny_gguf import dequantised_f32_copy

WINDOW = 512
ROWS = 64
"""Rows of logits that are widened at a time."""

Logits = Callable[[list[int]], np.ndarray]
"""Token ids [T] → float32 [T, vocab]."""


def language_reference() -> str:
    """All topics of Python's `help()`, by name."""
    return "\n\n".join(topics[name] for name in sorted(topics))


def windows(ids: list[int], bos: int | None, tokens: int) -> Iterator[list[int]]:
    """The first `tokens` ids in windows, each behind the token that begins a text."""
    taken = ids[:tokens]
    for start in range(0, len(taken), WINDOW):
        piece = taken[start : start + WINDOW]
        yield piece if bos is None else [bos, *piece]


def negative_log_likelihood(logits: np.ndarray, ids: list[int]) -> float:
    """Of all tokens but the first, in nats."""
    total = 0.0
    for start in range(0, len(ids) - 1, ROWS):
        after = ids[start + 1 : start + ROWS + 1]
        rows = logits[start : start + len(after)].astype(np.float64)
        highest = rows.max(-1, keepdims=True)
        normaliser = np.log(np.exp(rows - highest).sum(-1)) + highest[:, 0]
        total += float((normaliser - rows[np.arange(len(after)), after]).sum())
    return total


def perplexity(logits: Logits, pieces: list[list[int]]) -> float:
    """Over all windows."""
    total = sum(negative_log_likelihood(logits(piece), piece) for piece in pieces)
    return math.exp(total / sum(len(piece) - 1 for piece in pieces))


def engine_perplexity(path: Path, text: str, tokens: int, dtype: str) -> tuple[float, list[list[int]]]:
    """Of the engine with weights and KV of one type, and the windows that it was taken over."""
    with Engine("cpu", weight_dtype=dtype, kv_dtype=dtype) as engine:
        model = engine.load(path)
        pieces = list(windows(model.tokenizer.encode(text), model.tokenizer.bos_id, tokens))
        return perplexity(lambda piece: model.logits(piece).numpy(), pieces), pieces


def llama_cpp_logits(path: Path) -> Logits:
    """llama.cpp on an F32 file."""
    import llama_cpp

    model = llama_cpp.Llama(
        str(path), n_ctx=WINDOW + 8, n_batch=WINDOW + 8, n_ubatch=WINDOW + 8, logits_all=True, verbose=False,
        type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32, flash_attn=False,
    )  # fmt: skip

    def logits(ids: list[int]) -> np.ndarray:
        model.reset()
        model.eval(ids)
        return model.scores[: len(ids)]

    return logits


def main() -> None:
    """Print the perplexities and how far they are apart."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, help="default: Python's language reference")
    parser.add_argument("--tokens", type=int, default=20_000)
    args = parser.parse_args()
    text = language_reference() if args.text is None else args.text.read_text(encoding="utf-8")
    name = f"Python {platform.python_version()}'s language reference" if args.text is None else args.text.name
    print(f"{args.model.name} over {name}, SHA-256 {hashlib.sha256(text.encode()).hexdigest()[:16]}")
    ours, start = {}, time.perf_counter()
    for dtype in ("float32", "bfloat16"):
        ours[dtype], pieces = engine_perplexity(args.model, text, args.tokens, dtype)
        counted = sum(len(piece) - 1 for piece in pieces)
        taken = time.perf_counter() - start
        print(f"engine, {dtype}: {ours[dtype]:.5f} over {counted:,} tokens, {taken:.0f} s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        whole = dequantised_f32_copy(args.model, Path(folder) / "f32.gguf")
        theirs = perplexity(llama_cpp_logits(whole), pieces)
    print(f"llama.cpp, float32: {theirs:.5f}")
    for dtype, value in ours.items():
        print(f"engine, {dtype}, is off by {100 * (value / theirs - 1):+.4f} %")


if __name__ == "__main__":
    main()
