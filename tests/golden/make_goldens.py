"""Write the golden logits of this folder with llama.cpp; run by hand, never by the test suite.

    CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON" \
        pip install llama-cpp-python
    python -m tests.golden.make_goldens [NAME ...]

Each variant below is a recipe for `tests.support.tiny_gguf.make_tiny`. Its weights are dequantised by gguf-py
into an F32 file, and llama.cpp evaluates that on one CPU thread with float32 keys and values and
without flash attention, because on a quantised file its CPU path rounds activations to 8 bits. How
far it then is from its own float32 logits is kept too (`quantised_nmse`), as a record.

A golden file holds: `recipe` (JSON), `weights_sha256` (of the dequantised values), `tokens` int32 [T],
`logits` float32 [T, vocab], `quantised_nmse`, `source`. The built-in model's holds the 64 best ids and
logits of each position, three whole rows and a greedy continuation instead.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.tiny_gguf import dequantised_f32_copy, make_from_recipe, weights_hash

FOLDER = Path(__file__).parent
BUILTIN = FOLDER.parents[1] / "app" / "builtin" / "pocket-46m-q5_k_s.gguf"
BUILTIN_PROMPT = (
    "<|im_start|>user\nOnce upon a time there was a little fox. What is the capital of France, "
    "dear friend, please?<|im_end|>\n<|im_start|>assistant\n"
)
TOKENS = 48
GREEDY_TOKENS = 40
FULL_ROWS = (0, 15, 31)
BEST = 64

VARIANTS: dict[str, dict[str, Any]] = {
    "llama_f32": {"arch": "llama", "quant": "F32", "seed": 1},
    "llama_rope_freqs_q4_k_m_tied": {
        "arch": "llama", "quant": "Q4_K_M", "rope": "llama3", "tied": True, "seed": 2,
    },
    "llama_linear_q8_0": {"arch": "llama", "quant": "Q8_0", "rope": "linear", "seed": 3},
    "llama_yarn_q6_k": {"arch": "llama", "quant": "Q6_K", "rope": "yarn", "seed": 4},
    "llama_bias_spm_q4_0": {
        "arch": "llama", "quant": "Q4_0", "bias": True, "vocab": "spm", "vocab_size": 448, "seed": 5,
    },
    "llama_head_dim_96_bf16": {
        "arch": "llama", "quant": "BF16", "heads": 3, "kv_heads": 1, "head_dim": 96, "seed": 6,
    },
    "qwen2_q5_k": {"arch": "qwen2", "quant": "Q5_K", "rope_base": 1e6, "seed": 7},
    "qwen2_tied_iq4_nl": {"arch": "qwen2", "quant": "IQ4_NL", "tied": True, "seed": 8},
    "qwen2_yarn_q5_0": {"arch": "qwen2", "quant": "Q5_0", "rope": "yarn", "seed": 9},
    "qwen3_q4_k_m_tied": {"arch": "qwen3", "quant": "Q4_K_M", "tied": True, "rope_base": 1e6, "seed": 10},
    "qwen3_head_dim_128_q2_k": {"arch": "qwen3", "quant": "Q2_K", "head_dim": 128, "seed": 11},
    "qwen3_iq4_xs": {"arch": "qwen3", "quant": "IQ4_XS", "layers": 3, "kv_heads": 1, "seed": 12},
    "qwen3_mxfp4": {"arch": "qwen3", "quant": "MXFP4", "kv_heads": 4, "seed": 13},
    "qwen3_yarn_q3_k": {"arch": "qwen3", "quant": "Q3_K", "rope": "yarn", "seed": 14},
    "llama_q4_1": {"arch": "llama", "quant": "Q4_1", "layers": 1, "seed": 15},
    "qwen2_q5_1": {"arch": "qwen2", "quant": "Q5_1", "layers": 1, "seed": 16},
    "qwen3_f16": {"arch": "qwen3", "quant": "F16", "layers": 1, "seed": 17},
}  # fmt: skip


def open_llama_cpp(path: Path) -> Any:
    """llama.cpp on one CPU thread, float32 keys and values, no flash attention, all logits kept."""
    import llama_cpp

    return llama_cpp.Llama(
        str(path), n_ctx=512, n_batch=512, n_ubatch=512, n_threads=1, n_threads_batch=1, n_gpu_layers=0,
        type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32, flash_attn=False, logits_all=True,
        verbose=False,
    )  # fmt: skip


def source_name() -> str:
    """Which llama.cpp made the file."""
    import llama_cpp

    return f"llama.cpp of llama-cpp-python {llama_cpp.__version__}, CPU, 1 thread, KV F32, no flash attention"


def evaluate(path: Path, tokens: list[int]) -> np.ndarray:
    """Float32 [T, vocab] from llama.cpp."""
    model = open_llama_cpp(path)
    model.eval(tokens)
    logits = np.array(model.scores[: len(tokens)], dtype=np.float32)
    model.close()
    return logits


def nmse(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Squared error over the reference's energy."""
    return float(((ours - theirs) ** 2).sum() / (theirs.astype(np.float64) ** 2).sum())


def write_variant(name: str, folder: Path) -> None:
    """Make the model and write its golden file."""
    recipe = VARIANTS[name]
    path = make_from_recipe(folder / f"{name}.gguf", recipe)
    plain = dequantised_f32_copy(path, folder / f"{name}-f32.gguf")
    rng = np.random.default_rng(recipe["seed"] + 1000)
    tokens = rng.integers(0, recipe.get("vocab_size", 384), TOKENS).tolist()
    logits = evaluate(plain, tokens)
    quantised = nmse(evaluate(path, tokens).astype(np.float64), logits)
    np.savez_compressed(
        FOLDER / f"{name}.npz",
        recipe=json.dumps(recipe),
        weights_sha256=weights_hash(path),
        source=source_name(),
        tokens=np.array(tokens, np.int32),
        logits=logits,
        quantised_nmse=quantised,
    )
    print(f"{name}: llama.cpp on the quantised file NMSE {quantised:.1e}")


def write_builtin(folder: Path) -> None:
    """The built-in model: 32 prompt tokens, then a greedy continuation."""
    plain = dequantised_f32_copy(BUILTIN, folder / "builtin-f32.gguf")
    model = open_llama_cpp(plain)
    prompt = model.tokenize(BUILTIN_PROMPT.encode(), add_bos=False, special=True)
    model.eval(prompt)
    logits = np.array(model.scores[: len(prompt)], dtype=np.float32)
    greedy, margins = [], []
    for _ in range(GREEDY_TOKENS):
        row = model.scores[model.n_tokens - 1]
        second, best = np.sort(row)[-2:]
        greedy.append(int(row.argmax()))
        margins.append(float(best - second))
        model.eval([greedy[-1]])
    quantised = nmse(evaluate(BUILTIN, prompt).astype(np.float64), logits)
    best_ids = np.argsort(-logits, axis=1)[:, :BEST]
    rows = [row for row in FULL_ROWS if row < len(prompt)]
    np.savez_compressed(
        FOLDER / "builtin_46m.npz", weights_sha256=weights_hash(BUILTIN), source=source_name(),
        tokens=np.array(prompt, np.int32), best_ids=best_ids.astype(np.int32),
        best_logits=np.take_along_axis(logits, best_ids, 1), rows=np.array(rows), full=logits[rows],
        greedy=np.array(greedy, np.int32), greedy_margins=np.array(margins, np.float32),
        quantised_nmse=quantised,
    )  # fmt: skip
    print(f"builtin: {len(prompt)} tokens, NMSE {quantised:.1e}, smallest margin {min(margins):.3f}")
    print(model.detokenize(greedy).decode())


def main() -> None:
    """Write all golden files, or the named ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="variants (default: all, and `builtin`)")
    names = parser.parse_args().names or [*VARIANTS, "builtin"]
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            if name == "builtin":
                write_builtin(Path(folder))
            else:
                write_variant(name, Path(folder))


if __name__ == "__main__":
    main()
