"""What KV on disk costs and brings: `python -m tests.perf.kv_disk --model M --tokens 8000 [--json]`.

A chat of `--tokens` tokens ends while a row of the same model decodes; its KV is written. Then an engine
is started anew and the chat goes on: with its KV on disk, and without. Gaps are those of the row that
decodes: alone, while files are written, and while they are read. Beside other programs they say little;
what a tick has to do for files is therefore also given in processor time of the engine's thread.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from app.models.builtin import builtin_model_path
from engine import Engine, Request, SamplingParams
from engine.api.generation import Generation
from engine.core.saved_kv.kv_disk import KVDisk
from engine.engine import Model

GREEDY = SamplingParams(temperature=0.0)
ALONE_S = 4.0


class Steps:
    """What the engine's thread does for files between ticks, in milliseconds of its processor time."""

    def __init__(self) -> None:
        self.times: list[float] = []
        step = KVDisk.step

        def timed(disk: KVDisk) -> Any:
            worked, started = disk.ready, time.thread_time()
            result = step(disk)
            if worked:
                self.times.append((time.thread_time() - started) * 1e3)
            return result

        KVDisk.step = timed  # type: ignore[method-assign]

    def take(self) -> dict[str, float]:
        """Since the last call."""
        taken, self.times = self.times, []
        return summary(taken)


class Row:
    """A row that decodes, and when its tokens came."""

    def __init__(self, model: Model, tokens: list[int]) -> None:
        self.times: list[float] = []
        self.generation = model.submit(Request(tuple(tokens), GREEDY, ignore_eog=True))
        # Events are taken one by one on the engine's thread: the time is that of the delivery.
        self.generation.set_listener(self._arrived)
        while not self.times:
            time.sleep(0.01)

    def _arrived(self) -> None:
        self.times.append(time.perf_counter())
        self.generation.poll()

    def gaps(self, begin: float, end: float) -> list[float]:
        """Milliseconds between tokens, of gaps that overlap a time."""
        pairs = zip(self.times, self.times[1:], strict=False)
        return [(b - a) * 1e3 for a, b in pairs if b > begin and a < end]


def percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[int(percent / 100 * (len(ordered) - 1))] if ordered else 0.0


def summary(gaps: list[float]) -> dict[str, float]:
    return {
        "count": len(gaps),
        "p50": round(percentile(gaps, 50), 2),
        "p99": round(percentile(gaps, 99), 2),
        "max": round(max(gaps, default=0.0), 2),
    }


def opened(folder: Path | None, options: argparse.Namespace) -> Engine:
    # Drafts would deliver tokens in bunches, and gaps are what is looked at.
    return Engine(options.device, kv_disk_folder=folder, threads=options.threads, speculation="off")


def ids_of(generation: Generation) -> list[int]:
    end = generation.stream.wait_for_end(None)
    assert end is not None and end.error is None, end
    return [i for event in generation.poll() for i in getattr(event, "token_ids", ())]


def save(
    folder: Path, options: argparse.Namespace, prompt: list[int], steps: Steps
) -> tuple[list[int], dict[str, Any]]:
    with opened(folder, options) as engine:
        model = engine.load(options.model)
        started = time.perf_counter()
        chat = model.submit(Request(tuple(prompt), GREEDY, max_tokens=8, ignore_eog=True))
        chat_ids = [*prompt]
        row: Row | None = None
        for event in chat.events():
            chat_ids += getattr(event, "token_ids", ())
            if row is None:
                read = time.perf_counter() - started
                row = Row(model, prompt[-200:])
        assert row is not None
        ended = time.perf_counter()
        saving = engine._loop.call(lambda: engine._loop.disk.last_save(model._key))
        if saving is not None:
            saving.wait()
        written, work = time.perf_counter(), steps.take()
        time.sleep(max(ALONE_S, written - ended))
        alone = row.gaps(written + 0.1, time.perf_counter())
        row.generation.cancel()
        disk = engine.stats().kv_disk
        assert disk is not None
        return chat_ids, {
            "tokens": len(prompt),
            "read_s": round(read, 2),
            "written_mb": round(sum(p.stat().st_size for p in folder.glob("*.kv")) / 1e6, 1),
            "write_s": round(written - ended, 2),
            "gaps_alone_ms": summary(alone),
            "gaps_writing_ms": summary(row.gaps(ended, written)),
            "work_writing_ms": work,
            "note": disk.note,
        }


def go_on(folder: Path | None, options: argparse.Namespace, chat: list[int]) -> dict[str, Any]:
    """The next turn in an engine that was started for it, alone."""
    started = time.perf_counter()
    with opened(folder, options) as engine:
        model = engine.load(options.model)
        loaded = time.perf_counter()
        generation = model.submit(Request((*chat, *chat[5:25]), GREEDY, max_tokens=16, ignore_eog=True))
        assert generation.stream.wait() is not None
        first = time.perf_counter()
        ids = ids_of(generation)
        end = generation.finished
        assert end is not None
        return {
            "load_s": round(loaded - started, 2),
            "first_token_s": round(first - loaded, 3),
            "start_to_first_token_s": round(first - started, 2),
            "cached_tokens": end.cached_tokens,
            "ids": ids,
        }


def go_on_beside(folder: Path, options: argparse.Namespace, chat: list[int], steps: Steps) -> dict[str, Any]:
    """The same beside a row that decodes."""
    with opened(folder, options) as engine:
        model = engine.load(options.model)
        row = Row(model, chat[:200])
        time.sleep(ALONE_S)
        steps.take()
        asked = time.perf_counter()
        generation = model.submit(Request((*chat, *chat[5:25]), GREEDY, max_tokens=2, ignore_eog=True))
        assert generation.stream.wait() is not None
        first = time.perf_counter()
        row.generation.cancel()
        return {
            "first_token_s": round(first - asked, 3),
            "gaps_alone_ms": summary(row.gaps(row.times[0], asked)),
            "gaps_reading_ms": summary(row.gaps(asked, first)),
            "work_reading_ms": steps.take(),
        }


def progress(result: dict[str, Any]) -> None:
    """The rest takes minutes."""
    print(json.dumps(result), file=sys.stderr, flush=True)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(dir=options.scratch))
    try:
        with Engine(options.device, threads=options.threads) as engine:
            model = engine.load(options.model)
            words = model.tokenizer.encode("The river runs past the old mill and the town. ")
        rng = random.Random(1)
        prompt = [rng.choice(words) for _ in range(options.tokens)]
        steps = Steps()
        chat, result = save(folder, options, prompt, steps)
        progress(result)
        result["with"] = go_on(folder, options, chat)
        result["beside"] = go_on_beside(folder, options, chat, steps)
        progress(result)
        result["without"] = go_on(None, options, chat)
        result["same_ids"] = result["with"].pop("ids") == result["without"].pop("ids")
        return result
    finally:
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=builtin_model_path())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=1_900)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--scratch", type=Path, help="a folder on the disk to measure")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = measure(options)
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:<18} {value}")


if __name__ == "__main__":
    main()
