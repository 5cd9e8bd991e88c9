"""`tui-chat bench` against llama.cpp: same file, same threads, same machine, in turn.

    python -m tests.perf.compare_llamacpp --bin LLAMA_CPP/build/bin --model MODEL.gguf --threads 2

Runs llama-bench, llama-batched-bench and `tui-chat bench` one after the other, several times over, so
that a slow spell of the machine meets both; then the gaps of running streams while a long prompt is
read, with llama-server (over HTTP on this machine, which costs it well under a millisecond a token).
Prints medians and ratios as Markdown for BENCHMARKS.md.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.bench.statistics import median
from tests.perf.llama_server import Server, measure_stall

Figures = dict[str, float]


@dataclass(frozen=True)
class Setup:
    """What is compared and how."""

    binaries: Path
    model: Path
    threads: int
    rows: tuple[int, ...]
    prefill: int
    new: int
    repeat: int
    stall: int
    stall_rows: int


def llama_figures(setup: Setup) -> Figures:
    """One round of llama.cpp: total decode tok/s per rows and prefill tok/s."""
    figures: Figures = {}
    rows = ",".join(map(str, setup.rows))
    context = max(setup.rows) * (setup.new + 32)
    lines = _run(
        setup.binaries / "llama-batched-bench", "-m", setup.model, "-c", context, "-npp", 16, "-ntg",
        setup.new, "-npl", rows, "-t", setup.threads, "-tb", setup.threads, "--output-format", "jsonl",
    ).splitlines()  # fmt: skip
    for line in lines:
        if line.startswith("{"):
            entry = json.loads(line)
            figures[f"decode {entry['pl']}"] = entry["speed_tg"]
    output = _run(
        setup.binaries / "llama-bench", "-m", setup.model, "-p", setup.prefill, "-n", 0, "-r", 1, "-t",
        setup.threads, "-o", "json",
    )  # fmt: skip
    figures[f"prefill {setup.prefill}"] = json.loads(output)[0]["avg_ts"]
    return figures


def our_figures(setup: Setup) -> tuple[Figures, dict[str, Any]]:
    """One round of `tui-chat bench`: the same figures, and all that it printed."""
    rows = ",".join(map(str, setup.rows))
    report = _our_bench(
        setup, "--rows", rows, "--prefill", setup.prefill, "--packed", "none", "--new", setup.new,
        "--depth", 16, "--repeat", 1,
    )  # fmt: skip
    figures = {f"decode {entry['rows']}": entry["tok_s"] for entry in report["decode"]}
    figures |= {f"prefill {entry['tokens']}": entry["tok_s"] for entry in report["prefill"]}
    return figures, report


def compare_speed(setup: Setup) -> tuple[Figures, Figures, dict[str, Any]]:
    """Medians of alternating rounds: (ours, theirs, our last report)."""
    ours: list[Figures] = []
    theirs: list[Figures] = []
    report: dict[str, Any] = {}
    for number in range(setup.repeat):
        print(f"round {number + 1} of {setup.repeat}", file=sys.stderr)
        theirs.append(llama_figures(setup))
        figures, report = our_figures(setup)
        ours.append(figures)
    return medians(ours), medians(theirs), report


def compare_stall(setup: Setup) -> tuple[dict[str, Any], dict[str, Any]]:
    """Gaps beside one long prompt: (ours, llama-server's)."""
    vocab, context = model_sizes(setup.model)
    context = min(context, setup.stall + 1024)
    with Server(
        setup.binaries / "llama-server", setup.model, setup.threads, setup.stall_rows + 1, context
    ) as server:
        theirs = measure_stall(server, setup.stall_rows, setup.stall, vocab, context, setup.new, setup.repeat)
    report = _our_bench(
        setup, "--rows", setup.stall_rows, "--prefill", "none", "--packed", "none", "--new", setup.new,
        "--stall", setup.stall, "--repeat", setup.repeat,
    )  # fmt: skip
    return report["stall"], theirs


def medians(rounds: list[Figures]) -> Figures:
    """The median of each figure over the rounds."""
    return {name: median([figures[name] for figures in rounds]) for name in rounds[0]}


def speed_table(ours: Figures, theirs: Figures) -> str:
    """Markdown: one line a figure with the ratio, and how decode grows with rows."""
    lines = ["| work | tui-chat tok/s | llama.cpp tok/s | ratio |", "|---|---|---|---|"]
    for name in ours:
        ratio = ours[name] / theirs[name]
        lines.append(f"| {name} | {ours[name]:,.0f} | {theirs[name]:,.0f} | {ratio:.2f} |")
    counts = sorted(int(name.split()[1]) for name in ours if name.startswith("decode"))
    if len(counts) > 1:
        few, many = f"decode {counts[0]}", f"decode {counts[-1]}"
        gains = [side[many] / side[few] for side in (ours, theirs)]
        lines.append(f"| {counts[-1]} rows over {counts[0]} | {gains[0]:.2f}x | {gains[1]:.2f}x | |")
    return "\n".join(lines)


def stall_table(ours: dict[str, Any], theirs: dict[str, Any], tokens: int) -> str:
    """Markdown: the gaps of running rows while a prompt is read."""
    lines = [
        f"| {ours['rows']} rows, {tokens} tokens read | idle p50 | idle p99 | loaded p50 | p99 | max "
        "| p99 over idle p99 | first token |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, side in (("tui-chat", ours), ("llama-server", theirs)):
        idle, loaded = side["idle_ms"], side["loaded_ms"]
        cells: Iterable[float] = (idle["p50"], idle["p99"], loaded["p50"], loaded["p99"], loaded["max"])
        numbers = " | ".join(f"{value:.1f} ms" for value in cells)
        ratio = loaded["p99"] / idle["p99"]
        lines.append(f"| {name} | {numbers} | {ratio:.1f}x | {side['ttft_ms']:,.0f} ms |")
    return "\n".join(lines)


def model_sizes(path: Path) -> tuple[int, int]:
    """(vocabulary, context length) of a model file."""
    from engine.gguf.file import open_gguf

    with open_gguf(path) as file:
        vocab = file.tensors["token_embd.weight"].shape[0]
        return vocab, int(str(file.metadata[f"{file.architecture}.context_length"]))


def _our_bench(setup: Setup, *options: object) -> dict[str, Any]:
    output = _run(
        sys.executable,
        "-m",
        "app",
        "bench",
        "-m",
        setup.model,
        "--device",
        "cpu",
        "--json",
        *options,
        threads=setup.threads,
    )
    return json.loads(output)


def _run(*command: object, threads: int | None = None) -> str:
    environment = os.environ | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode:
        raise SystemExit(f"{command[0]} failed with code {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def main() -> None:
    """Read the arguments, run both, print Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True, help="folder of llama-bench and its siblings")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", default="1,4,8")
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--stall", type=int, default=1500, help="tokens of the long prompt; 0 leaves it out")
    parser.add_argument("--stall-rows", type=int, default=4)
    args = parser.parse_args()
    setup = Setup(
        args.bin, args.model, args.threads, tuple(map(int, args.rows.split(","))), args.prefill, args.new,
        args.repeat, args.stall, args.stall_rows,
    )  # fmt: skip
    ours, theirs, report = compare_speed(setup)
    print(
        f"{args.model.name}, {args.threads} threads, {report['kernels']}, medians of {args.repeat} rounds\n"
    )
    print(speed_table(ours, theirs))
    if args.stall:
        print("\n" + stall_table(*compare_stall(setup), args.stall))


if __name__ == "__main__":
    main()
