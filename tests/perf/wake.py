"""Load, pause and wake of one model on a GPU, and the gaps of another model's answer meanwhile.

python -m tests.perf.wake --model MODEL --beside SMALL

A load is measured cold (the file is dropped from the page cache; how much of it stayed is printed) and
from the page cache, after one that compiles what has to be compiled.
"""

import argparse
import ctypes
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from app.models.make import switch_often
from engine.api.request import Request, SamplingParams
from engine.engine import Engine, Model
from tests.perf.gaps import Stream


def drop(path: Path) -> None:
    """Have a file leave the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def cached_share(path: Path) -> float:
    """How much of a file is in the page cache."""
    size, page = path.stat().st_size, mmap.PAGESIZE
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as view:
        pages = np.zeros(-(-size // page), dtype=np.uint8)
        address = np.frombuffer(view, dtype=np.uint8).ctypes.data
        found = ctypes.CDLL(None, use_errno=True).mincore(
            ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_void_p(pages.ctypes.data)
        )
        if found:
            raise OSError(ctypes.get_errno(), "mincore")
        return float((pages & 1).mean())


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def ask(model: Model) -> str:
    """A short greedy answer, which must not change."""
    prompt = tuple(model.tokenizer.encode("The sea is"))
    return model.submit(Request(prompt, SamplingParams(temperature=0.0), max_tokens=32)).result(600)[0]


def loads(engine: Engine, path: Path, stream: Stream, times: int) -> Model:
    """Load and unload, cold and cached; the last one stays."""
    size = path.stat().st_size / 1e6
    made = [engine.load(path)]
    for number in range(2 * times):
        made.pop().unload()
        cold = number < times
        if cold:
            drop(path)
        share, what = cached_share(path), "cold load" if cold else "cached load"
        with stream.during(what):
            seconds = timed(lambda: made.append(engine.load(path)))
        rate = size / seconds
        print(f"{what}: {seconds:.2f} s, {rate:,.0f} MB/s, {share:.0%} of it was cached", flush=True)
    return made[0]


def moves(engine: Engine, model: Model, stream: Stream, times: int) -> None:
    """Pause and wake; the first pause copies, later ones do where no copy was kept."""
    # Graphs are captured when no model runs: beside an answer that goes on, waiting for them has no end.
    wanted = ask(model)
    for number in range(times):
        with stream.during("first pause" if not number else "pause"):
            paused = timed(lambda: engine.pause_model(model.id))
        stream.wait(50)
        with stream.during("wake"):
            woken = timed(lambda: engine.wake_model(model.id))
        rate = model.info.weight_bytes / 1e9 / woken
        print(f"pause: {paused:.3f} s; wake: {woken:.3f} s, {rate:.1f} GB/s", flush=True)
        if (said := ask(model)) != wanted:
            raise SystemExit(f"after a pause the answer is {said!r}, not {wanted!r}")
    engine.pause_model(model.id)
    with stream.during("message that wakes it"):
        seconds = timed(lambda: ask(model))
    print(f"message to a paused model, 32 tokens: {seconds:.2f} s")
    with stream.during("unload by hand"):
        engine.pause_model(model.id, unload=True)
    with stream.during("wake from the file"):
        seconds = timed(lambda: engine.wake_model(model.id))
    print(f"wake of an unloaded model: {seconds:.2f} s")


def main() -> None:
    """Measure loads, then pauses, beside an answer of a small model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--beside", type=Path, required=True, help="a small model whose answer goes on")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--times", type=int, default=3)
    args = parser.parse_args()
    switch_often()
    with Engine(args.device, speculation="off") as engine:
        beside = engine.load(args.beside)
        while beside.compiling():
            time.sleep(0.1)
        stream = Stream(beside, "Once upon a time")
        stream.wait(50)
        with stream.during("nothing else"):
            stream.wait(500)
        model = loads(engine, args.model, stream, args.times)
        moves(engine, model, stream, args.times)
        with stream.during("nothing else, after"):
            stream.wait(500)
        print(stream.report())
        stream.end()


if __name__ == "__main__":
    main()
