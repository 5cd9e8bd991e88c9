"""Eight tabs in half the KV that they need, and faults in one of several: is everybody else's text the same?

    python -m tests.perf.pressure --model FILE [--tabs 8] [--tokens 16000] [--new 600] [--device cuda]

Prints JSON: for memory, whether all tabs finished with the ids of a run that had room, how often
somebody paused, how much KV went to host memory, and the gaps of rows that decoded, while the focus
went from tab to tab; for every fault, who ended and whether the others' ids are those of a clean run.
Results must not depend on who runs together: float32 on a CPU, batch-independent mode on a GPU.
"""

import argparse
import json
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from app.bench.statistics import percentile
from app.bench.workload import RandomPrompts
from app.models.builtin import builtin_model_path
from engine.api.request import Finished, FinishReason, Request, SamplingParams
from engine.engine import Engine, Model

GREEDY = SamplingParams(temperature=0.0)
FOCUS_S = 2.5
FAULT_ROWS, FAULT_NEW, VICTIM = 4, 120, 2
TIMEOUT = 300.0


class Tab:
    """One answer: its ids, and the milliseconds between them."""

    def __init__(self, model: Model, prompt: tuple[int, ...], new: int) -> None:
        self.ids: list[int] = []
        self.gaps: list[float] = []
        self.first_s = 0.0
        self.finished: Finished | None = None
        self._ended = threading.Event()
        self._last = time.perf_counter()
        self.generation = model.submit(Request(prompt, GREEDY, max_tokens=new, ignore_eog=True))
        self.generation.set_listener(self._take)

    def wait(self) -> None:
        """Until its end."""
        if not self._ended.wait(TIMEOUT):
            raise SystemExit(f"an answer has not ended after {TIMEOUT} s")

    def _take(self) -> None:
        now = time.perf_counter()
        for event in self.generation.poll():
            if isinstance(event, Finished):
                self.finished = event
                self._ended.set()
            elif event.token_ids:
                if self.ids:
                    self.gaps.append((now - self._last) * 1e3)
                else:
                    self.first_s = now - self._last
                self._last = now
                self.ids += event.token_ids


def alone(engine: Engine, path: Path, prompts: list[tuple[int, ...]], new: int) -> list[list[int]]:
    """The ids of every answer with the engine to itself."""
    model = engine.load(path)
    answers = []
    for prompt in prompts:
        tab = Tab(model, prompt, new)
        tab.wait()
        answers.append(tab.ids)
    return answers


def contended(engine: Engine, path: Path, prompts: list[tuple[int, ...]], new: int) -> tuple[list[Tab], int]:
    """All at once, the focus going round; and the most bytes of KV that waited in host memory."""
    model = engine.load(path)
    while model.compiling():
        time.sleep(0.05)
    tabs = [Tab(model, prompt, new) for prompt in prompts]
    host, started = 0, time.perf_counter()
    while any(tab.finished is None for tab in tabs):
        turn = int((time.perf_counter() - started) / FOCUS_S) % len(tabs)
        engine.focus(tabs[-1 - turn].generation.sequence_id)
        host = max(host, engine.stats().kv_bytes_host)
        time.sleep(0.05)
        if time.perf_counter() - started > TIMEOUT:
            raise SystemExit(f"not every tab has finished after {TIMEOUT} s: {engine.stats().sequences}")
    return tabs, host


def pressure(options: argparse.Namespace, prompts: list[tuple[int, ...]]) -> dict[str, Any]:
    """Tabs in half the KV that they need."""
    with make_engine(options) as engine:
        started = time.perf_counter()
        expected = alone(engine, options.model, prompts, options.new)
        alone_s = time.perf_counter() - started
        bytes_per_token = engine.stats().models[0].kv_bytes_per_token
    budget = bytes_per_token * (options.tokens + options.new) * options.tabs // 2
    with make_engine(options, kv_budget_bytes=budget) as engine:
        started = time.perf_counter()
        tabs, host = contended(engine, options.model, prompts, options.new)
        stats = engine.stats()
        gaps = [gap for tab in tabs for gap in tab.gaps]
        return {
            "kernels": stats.kernels,
            "kv_budget": budget,
            "alone_s": round(alone_s, 2),
            "together_s": round(time.perf_counter() - started, 2),
            "finished": sum(tab.finished.reason is FinishReason.LENGTH for tab in tabs if tab.finished),
            "errors": [tab.finished.error for tab in tabs if tab.finished and tab.finished.error],
            "equal": [tab.ids == ids for tab, ids in zip(tabs, expected, strict=True)],
            "preemptions": stats.preemptions,
            "host_bytes": host,
            "gap_ms": {f"p{p}": round(percentile(gaps, p), 2) for p in (50, 99)},
            "longest_ms": [round(gap) for gap in sorted(gaps)[-8:]],
        }


@contextmanager
def passes_raise(engine: Engine, model: Model, victim: Tab, error: Exception) -> Any:
    """Every pass with the victim raises."""
    runner: Any = engine._loop.models.get(model._key).runner
    originals = {name: getattr(runner, name) for name in ("run", "launch")}

    def failing(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(batch: Any) -> Any:
            if any(s.sequence_id == victim.generation.sequence_id for s in batch.sequences):
                raise error
            return original(batch)

        return call

    for name, original in originals.items():
        setattr(runner, name, failing(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(runner, name, original)


def poison(engine: Engine, model: Model, victim: Tab) -> None:
    """No number in the victim's KV: its logits are none."""
    loop = engine._loop
    runner: Any = loop.models.get(model._key).runner

    @torch.inference_mode()
    def write() -> None:
        block = loop.scheduler.sequences[victim.generation.sequence_id].block_table[0]
        torch.cuda.synchronize() if engine.device.startswith("cuda") else None
        for piece in runner.kv.pieces(0, block):
            piece.fill_(float("nan"))
        torch.cuda.synchronize() if engine.device.startswith("cuda") else None

    loop.call(write)


def faults(options: argparse.Namespace, prompts: list[tuple[int, ...]]) -> dict[str, Any]:
    """One of four rows fails in several ways, in the middle of its answer."""
    result: dict[str, Any] = {}
    with make_engine(options) as engine:
        model = engine.load(options.model)
        while model.compiling():
            time.sleep(0.05)
        clean = [Tab(model, prompt, FAULT_NEW) for prompt in prompts]
        for tab in clean:
            tab.wait()
        errors = {
            "kernel raises": RuntimeError("an injected kernel failure"),
            "out of memory": torch.OutOfMemoryError("injected: out of memory"),
            "not a number": None,
        }
        for name, error in errors.items():
            tabs = [Tab(model, prompt, FAULT_NEW) for prompt in prompts]
            victim = tabs[VICTIM]
            while len(victim.ids) < FAULT_NEW // 4:
                time.sleep(0.001)
            if error is None:
                poison(engine, model, victim)
                for tab in tabs:
                    tab.wait()
            else:
                with passes_raise(engine, model, victim, error):
                    for tab in tabs:
                        tab.wait()
            others = [index for index in range(len(tabs)) if index != VICTIM]
            result[name] = {
                "victim": str(victim.finished and (victim.finished.reason.value, victim.finished.error)),
                "victim_prefix_equal": victim.ids == clean[VICTIM].ids[: len(victim.ids)],
                "others_equal": [tabs[index].ids == clean[index].ids for index in others],
                "longest_gap_ms": round(max(max(tabs[index].gaps) for index in others), 1),
            }
    return result


def make_engine(options: argparse.Namespace, **more: Any) -> Engine:
    """An engine whose results do not depend on who runs together."""
    gpu = options.device.startswith("cuda")
    exact = {"batch_independent": True} if gpu else {"weight_dtype": "float32", "kv_dtype": "float32"}
    if gpu and options.kv_offload != "auto":
        exact["kv_offload"] = options.kv_offload
    return Engine(options.device, **exact, **more)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=builtin_model_path())
    parser.add_argument("--tabs", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--new", type=int, default=300)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--kv-offload", default="auto")
    options = parser.parse_args()
    with Engine(options.device) as engine:
        tokenizer = engine.load(options.model).tokenizer
    make = RandomPrompts(tokenizer.vocab_size, tokenizer.is_control).make
    figures = {"faults": faults(options, [make(64) for _ in range(FAULT_ROWS)])}
    figures["pressure"] = pressure(options, [make(options.tokens) for _ in range(options.tabs)])
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
