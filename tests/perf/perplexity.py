"""Perplexity of a model file over a text, by the engine and by llama.cpp's float path on the same tokens.

    pip install llama-cpp-python
    python -m tests.perf.perplexity --model FILE --text FILE --tokens 20000

llama.cpp gets the file's weights dequantised to F32, float32 keys and values and no flash attention: on a
quantised file its CPU path rounds activations to 8 bits. The text is cut into windows that start afresh.
"""

import argparse
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from engine import Engine
from tests.support.tiny_gguf import dequantised_f32_copy

WINDOW = 512

Logits = Callable[[list[int]], np.ndarray]
"""Token ids [T] → float32 [T, vocab]."""


def windows(ids: list[int], bos: int | None, tokens: int) -> Iterator[list[int]]:
    """The first `tokens` ids in windows, each behind the token that begins a text."""
    for start in range(0, min(tokens, len(ids)), WINDOW):
        piece = ids[start : start + WINDOW]
        yield piece if bos is None else [bos, *piece]


def negative_log_likelihood(logits: np.ndarray, ids: list[int]) -> float:
    """Of all tokens but the first, in nats."""
    rows = logits[:-1].astype(np.float64)
    highest = rows.max(-1, keepdims=True)
    normaliser = np.log(np.exp(rows - highest).sum(-1)) + highest[:, 0]
    return float((normaliser - rows[np.arange(len(ids) - 1), ids[1:]]).sum())


def perplexity(logits: Logits, pieces: list[list[int]]) -> float:
    """Over all windows."""
    total = sum(negative_log_likelihood(logits(piece), piece) for piece in pieces)
    return math.exp(total / sum(len(piece) - 1 for piece in pieces))


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
    """Print both perplexities and how far they are apart."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=20_000)
    args = parser.parse_args()
    with Engine("cpu", weight_dtype="float32", kv_dtype="float32") as engine:
        model = engine.load(args.model)
        ids = model.tokenizer.encode(args.text.read_text())
        pieces = list(windows(ids, model.tokenizer.bos_id, args.tokens))
        ours = perplexity(lambda piece: model.logits(piece).numpy(), pieces)
    print(f"engine, float32: {ours:.5f} over {sum(map(len, pieces)):,} tokens", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        whole = dequantised_f32_copy(args.model, Path(folder) / "f32.gguf")
        theirs = perplexity(llama_cpp_logits(whole), pieces)
    print(f"llama.cpp, float32: {theirs:.5f}; apart by {abs(ours / theirs - 1):.2e}")


if __name__ == "__main__":
    main()
