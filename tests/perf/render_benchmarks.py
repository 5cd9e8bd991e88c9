"""Make the GPU part of BENCHMARKS.md from the outputs of `tui-chat bench --json` in tests/perf/results.

    python -m tests.perf.render_benchmarks

A result's file name says what was measured: `h200-SHAPES-QUANT-YYYY-MM-DD.json`, the model a file of
`tests.perf.make_shapes`. The newest of each counts. Floors are for an H200 as measured: 4.43 TB/s when
memory is only read, 790 TFLOP/s in a large bfloat16 product. A decode step reads every weight but the
embeddings once and the KV of every row; prefill computes with every weight for each token, and its
causal attention.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from tests.perf.make_shapes import SHAPES, Shapes, matrices, tensor_type

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "tests" / "perf" / "results"
DOCUMENT = ROOT / "BENCHMARKS.md"
BEGIN = "<!-- The GPU part is made by `python -m tests.perf.render_benchmarks`. -->"
END = "<!-- End of the GPU part. -->"

READ_BYTES_S = 4.43e12
FLOPS_S = 790e12
KV_BYTES = {"float16": 2.0, "bfloat16": 2.0, "float32": 4.0, "q8_0": 34 / 32}
"""Bytes of one value in the KV cache."""

LLAMA_CPP: Mapping[tuple[str, str], Mapping[str, float]] = {
    ("qwen3-8b", "q4_k_m"): {
        "decode 1@0": 261.7, "decode 1@2048": 249.3, "decode 1@16384": 206.0, "decode 2@512": 439,
        "decode 4@512": 657, "decode 8@512": 912, "decode 16@512": 1891, "decode 32@512": 2958,
        "decode 64@512": 3982, "prefill 512": 9222, "prefill 2048": 9942, "prefill 8192": 9920,
    },
}  # fmt: skip
"""tok/s of llama.cpp 0c1e570 (CUDA 13.0, sm_90, flash attention) on an H200 with the same files."""

HEAD = """## One NVIDIA H200

```
python -m tests.perf.make_shapes --shapes qwen3-8b --quant q4_k_m --out MODEL
tui-chat bench --model MODEL --device cuda --json
```

Medians of three runs, greedy, on files of random weights with the shapes and the mix of real ones.
llama.cpp 0c1e570 (CUDA 13.0, flash attention) ran on the same kind of GPU with the same files: `llama-bench`
for one row and for prefill, `llama-batched-bench` for more rows. Rows decode 128 tokens and more behind the
context named; it is read outside the clock.

*Moved* is what one step must read, weights and KV, *computed* the arithmetic of a prompt; the *floor* is the
time of that at 4.43 TB/s or at 790 TFLOP/s, as measured on such a GPU."""


@dataclass(frozen=True)
class Result:
    """One output of `tui-chat bench --json` and what its file's name says."""

    shapes_name: str
    quant: str
    date: str
    figures: Mapping[str, Any]

    @property
    def shapes(self) -> Shapes:
        """The shapes of the model."""
        return SHAPES[self.shapes_name]

    def peer(self, work: str) -> float | None:
        """llama.cpp's tok/s at the same work."""
        return LLAMA_CPP.get((self.shapes_name, self.quant), {}).get(work)


@dataclass(frozen=True)
class Cost:
    """The least that some work takes."""

    seconds: float
    text: str
    """What is moved or computed, for people."""


def newest(folder: Path) -> list[Result]:
    """The latest result of each model, larger models first."""
    found: dict[tuple[str, str], Result] = {}
    for path in sorted(folder.glob("h200-*.json")):
        named = re.fullmatch(r"h200-(.+)-([^-]+)-(\d{4}-\d\d-\d\d)\.json", path.name)
        if named is None:
            raise ValueError(f"{path.name}: not h200-SHAPES-QUANT-YYYY-MM-DD.json")
        result = Result(named[1], named[2], named[3], json.loads(path.read_text()))
        if result.shapes_name not in SHAPES:
            raise ValueError(f"{path.name}: no shapes '{named[1]}' in tests.perf.make_shapes")
        known = found.get((result.shapes_name, result.quant))
        if known is None or known.date < result.date:
            found[result.shapes_name, result.quant] = result
    return sorted(found.values(), key=lambda result: (-parameters(result.shapes), result.quant))


def render(results: Iterable[Result]) -> str:
    """The text between the markers."""
    sections = [_section(result) for result in results]
    return "\n\n".join([HEAD, *sections]) if sections else ""


def parameters(shapes: Shapes) -> int:
    """Weights that every token is multiplied with."""
    return sum(rows * cols for name, _, rows, cols in matrices(shapes) if _is_read(name, shapes))


def step_bytes(shapes: Shapes, quant: str) -> int:
    """Bytes of the weights that one decode step reads."""
    total = 0
    for name, layer, rows, cols in matrices(shapes):
        if _is_read(name, shapes):
            kind = GGMLQuantizationType[tensor_type(name, layer, shapes, quant)]
            elements, nbytes = GGML_QUANT_SIZES[kind]
            total += rows * cols // elements * nbytes
    return total


def decode_cost(result: Result, rows: int, depth: int) -> Cost:
    """One step of `rows` rows half-way through what they decode."""
    shapes = result.shapes
    per_token = 2 * shapes.layers * shapes.kv_heads * shapes.head_dim * KV_BYTES[result.figures["kv_dtype"]]
    context = depth + result.figures["new"] / 2
    moved = step_bytes(shapes, result.quant) + rows * context * per_token
    return Cost(moved / READ_BYTES_S, f"{moved / 1e9:.2f} GB")


def prefill_cost(shapes: Shapes, tokens: int, prompts: int = 1) -> Cost:
    """Reading `prompts` prompts of `tokens` tokens each."""
    attention = 2 * shapes.layers * shapes.heads * shapes.head_dim * tokens**2
    flops = prompts * (2 * parameters(shapes) * tokens + attention)
    return Cost(flops / FLOPS_S, f"{flops / 1e12:.2f} TFLOP")


def document(text: str, part: str) -> str:
    """`text` with `part` between the markers; ValueError when it lacks them."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the document has no markers of the GPU part")
    return f"{before}{BEGIN}\n\n{part}\n\n{END}{after}" if part else f"{before}{BEGIN}\n{END}{after}"


def _section(result: Result) -> str:
    return "\n\n".join([f"### {_title(result)}", _circumstances(result), _table(result)])


def _title(result: Result) -> str:
    size = step_bytes(result.shapes, result.quant)
    return f"{result.shapes_name} {result.quant.upper()} ({size / 1e9:.2f} GB read a step)"


def _circumstances(result: Result) -> str:
    figures = result.figures
    versions = ", ".join(f"{name} {version}" for name, version in figures["versions"].items())
    machine, start = figures["machine"], figures["start"]
    return (
        f"{result.date}, {machine['name']}, driver {machine.get('driver', 'unknown')}, {versions}, "
        f"commit {(figures['commit'] or 'unknown')[:12]}; {figures['kernels']}, KV {figures['kv_dtype']}; "
        f"on a slower implementation: {', '.join(figures['fallbacks']) or 'nothing'}. Loaded in "
        f"{start['load_s']:.1f} s; first token {start['first_token_s']:.1f} s after the start."
    )


def _table(result: Result) -> str:
    lines = ["| work | llama.cpp tok/s | tui-chat tok/s | ratio | moved or computed | floor | of the floor |"]
    lines.append("|---|---|---|---|---|---|---|")
    figures = result.figures
    for entry in figures["decode"]:
        rows, depth, speed = entry["rows"], entry["depth"], entry["tok_s"]
        named = "1 row" if rows == 1 else f"total of {rows} rows"
        behind = f"after {depth:,} tokens" if depth else "empty context"
        cost = decode_cost(result, rows, depth)
        peer = result.peer(f"decode {rows}@{depth}")
        lines.append(_line(f"decode, {named}, {behind}", peer, speed, rows / speed, cost))
    for entry in figures["prefill"]:
        tokens, speed = entry["tokens"], entry["tok_s"]
        cost, peer = prefill_cost(result.shapes, tokens), result.peer(f"prefill {tokens}")
        lines.append(_line(f"prefill {tokens:,}", peer, speed, tokens / speed, cost))
    if packed := figures["packed"]:
        count, tokens, speed = packed["prompts"], packed["tokens"], packed["tok_s"]
        cost = prefill_cost(result.shapes, tokens, count)
        work = f"{count} prompts of {tokens} at once ({packed['ratio']:.1f}x one by one)"
        lines.append(_line(work, None, speed, count * tokens / speed, cost))
    return "\n".join(lines)


def _line(work: str, peer: float | None, speed: float, seconds: float, cost: Cost) -> str:
    theirs, ratio = ("–", "–") if peer is None else (f"{peer:,.0f}", f"{speed / peer:.2f}")
    floor, share = f"{cost.seconds * 1e3:.2f} ms", f"{cost.seconds / seconds:.0%}"
    return f"| {work} | {theirs} | {speed:,.0f} | {ratio} | {cost.text} | {floor} | {share} |"


def _is_read(name: str, shapes: Shapes) -> bool:
    """Whether each token needs the whole matrix; of embeddings of its own it needs one row."""
    return name != "token_embd" or shapes.tied


def main() -> None:
    """Rewrite the GPU part of BENCHMARKS.md."""
    DOCUMENT.write_text(document(DOCUMENT.read_text(), render(newest(RESULTS))))


if __name__ == "__main__":
    main()
