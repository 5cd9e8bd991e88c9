"""Eight tabs that stream in the real app in a pseudo-terminal, beside the same engine without an app.

    python -m tests.perf.tabs_in_terminal --model FILE --device cuda [--tabs 8] [--load OTHER]

Prints for each: total tok/s, gaps between an answer's tokens (p50, p99, most), and in the terminal the
time from a key's byte to the byte that shows it. --load: the same again while that model loads. Without the
app prompts are as long as the tabs' answers were when they were measured: longer contexts are more to read.
"""

import argparse
import asyncio
import json
import os
import pty
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from fcntl import ioctl
from itertools import cycle, islice
from pathlib import Path
from termios import TIOCSWINSZ
from typing import Any

import numpy as np

from app.models.make import make_engine, switch_often
from app.settings.file import EngineSettings, GeneralSettings, Settings
from app.settings.paths import HOME_VARIABLE
from engine.api.event_stream import EventStream
from engine.api.request import Request, SamplingParams, TextDelta

STORY = "Tell me a very long story about a fox."
SIGN = "ж"
"""Typed, and in no answer of a model with random weights or English text."""


class Arrivals:
    """When each answer's tokens came, taken on the engine's thread."""

    def __init__(self) -> None:
        self.times: dict[int, list[tuple[float, int]]] = {}
        push, times = EventStream.push, self.times

        def counted(stream: EventStream, event: Any) -> None:
            if isinstance(event, TextDelta):
                times.setdefault(id(stream), []).append((time.perf_counter(), len(event.token_ids)))
            push(stream, event)

        EventStream.push = counted  # type: ignore[method-assign]

    def lengths(self) -> list[int]:
        """Tokens of each answer so far."""
        return [sum(count for _, count in row) for row in list(self.times.values())]

    def figures(self, start: float, end: float) -> dict[str, float]:
        """Of what came in a window."""
        kept = [[one for one in row if start <= one[0] <= end] for row in list(self.times.values())]
        tokens = sum(count for row in kept for _, count in row)
        gaps = np.concatenate([np.diff([at for at, _ in row]) for row in kept if len(row) > 1]) * 1e3
        return {
            "tok_s": tokens / (end - start),
            "gap_p50_ms": float(np.percentile(gaps, 50)),
            "gap_p99_ms": float(np.percentile(gaps, 99)),
            "gap_max_ms": float(gaps.max()),
        }


def settings_of(args: argparse.Namespace) -> Settings:
    """The defaults on the device that is measured, with answers that go on whatever they say."""
    general = GeneralSettings(stop_repeats=False)
    return Settings(general=general, engine=EngineSettings(device=args.device))


def endless(model: Any) -> SamplingParams:
    """Answers do not end by themselves."""
    return SamplingParams(logit_bias=dict.fromkeys(getattr(model.tokenizer, "eog_ids", ()), -1e9))


def headless(args: argparse.Namespace, lengths: list[int]) -> dict[str, dict[str, float]]:
    """As many rows with contexts of these lengths, without an app."""
    arrivals = Arrivals()
    switch_often()
    with make_engine(settings_of(args).engine) as engine:
        model = engine.load(args.model)
        prompts = [prompt_of(model.tokenizer.encode(STORY), *one) for one in enumerate(lengths)]
        running = [model.submit(Request(prompt, endless(model))) for prompt in prompts]
        until(lambda: len(arrivals.times) == len(running) and min(arrivals.lengths()) > 50)
        figures = {"streaming": window(args, arrivals)}
        if args.load:
            figures["while a model loads"] = loading(args, arrivals, engine)
        for one in running:
            one.cancel()
    return figures


def prompt_of(ids: list[int], number: int, length: int) -> tuple[int, ...]:
    """Ids again and again, of a length; no two numbers' prompts begin alike, so they share nothing."""
    turned = ids[number % len(ids) :] + ids[: number % len(ids)]
    return tuple(islice(cycle(turned), len(ids) + length))


def window(args: argparse.Namespace, arrivals: Arrivals) -> dict[str, float]:
    """Figures of the next seconds."""
    start = time.perf_counter()
    time.sleep(args.seconds)
    return arrivals.figures(start, time.perf_counter())


def loading(args: argparse.Namespace, arrivals: Arrivals, engine: Any) -> dict[str, float]:
    """Figures of a load."""
    start = time.perf_counter()
    engine.load(args.load)
    return arrivals.figures(start, time.perf_counter())


def until(condition: Callable[[], bool], seconds: float = 180) -> None:
    """Wait for it."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("the tabs did not begin to stream")
        time.sleep(0.05)


def child(args: argparse.Namespace) -> None:
    """The app in this terminal, driven until it has been measured."""
    from app.window.app import ChatApp, engine_factory
    from tests.app.driving import ready, say

    arrivals, settings = Arrivals(), settings_of(args)
    app = ChatApp(settings, engine_factory=engine_factory(settings.engine), model=args.model)

    async def drive(pilot: Any) -> None:
        screen = await ready(pilot, 180)
        for number in range(args.tabs):
            if number:
                await pilot.press("ctrl+t")
                await ready(pilot)
            screen.active.conversation.sampling = endless(screen.active.model.local)
            await say(pilot, STORY)
        await asyncio.to_thread(until, lambda: len(arrivals.times) == args.tabs)
        screen.composer.focus()
        Path(args.child + ".ready").touch()
        lengths = arrivals.lengths()
        figures = {"streaming": await asyncio.to_thread(window, args, arrivals)}
        if args.load:
            engine = screen.context.engine._engine
            figures["while a model loads"] = await asyncio.to_thread(loading, args, arrivals, engine)
        Path(args.child).write_text(json.dumps({"lengths": lengths, "figures": figures}))
        os._exit(0)

    app.run(auto_pilot=drive)


class Echo:
    """Types into a pseudo-terminal and waits for what shows it."""

    def __init__(self, master: int) -> None:
        self.master, self.milliseconds, self.written = master, list[float](), 0
        self._seen = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with suppress(OSError):
            while chunk := os.read(self.master, 1 << 16):
                self.written += len(chunk)
                if SIGN.encode() in chunk:
                    self._seen.set()

    def type(self, seconds: float) -> None:
        """A key, what it shows, and a key that takes it back, five times a second."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            self._seen.clear()
            pressed = time.perf_counter()
            with suppress(OSError):
                os.write(self.master, SIGN.encode())
                if self._seen.wait(5):
                    self.milliseconds.append((time.perf_counter() - pressed) * 1e3)
                os.write(self.master, b"\x7f")
            time.sleep(0.2)


def in_terminal(args: argparse.Namespace) -> tuple[dict[str, dict[str, float]], list[int]]:
    """Start the app in a pseudo-terminal and type into it while it streams.

    Returns figures, and how long each tab's answer was when they began to be taken.
    """
    with tempfile.TemporaryDirectory() as home:
        out = str(Path(home) / "figures.json")
        pid, master = pty.fork()
        if pid == 0:
            os.environ |= {HOME_VARIABLE: home, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
            module = [sys.executable, "-m", "tests.perf.tabs_in_terminal"]
            os.execv(sys.executable, [*module, *sys.argv[1:], "--child", out])
        ioctl(master, TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
        echo = Echo(master)
        until(Path(out + ".ready").exists, 240)
        before, started = echo.written, time.perf_counter()
        echo.type(args.seconds)
        rate = (echo.written - before) / (time.perf_counter() - started)
        os.waitpid(pid, 0)
        written = json.loads(Path(out).read_text())
    figures: dict[str, dict[str, float]] = written["figures"]
    figures["streaming"] |= {
        "echo_p50_ms": float(np.percentile(echo.milliseconds, 50)),
        "echo_p95_ms": float(np.percentile(echo.milliseconds, 95)),
        "keys": len(echo.milliseconds),
        "terminal_kB_s": rate / 1e3,
    }
    return figures, written["lengths"]


def main() -> None:
    """Measure both and print them side by side."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tabs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--load", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args)
        return
    tabs, lengths = in_terminal(args)
    print("tokens of the tabs' answers when measured:", *lengths)
    for name, measured in (("in a terminal", tabs), ("headless", headless(args, lengths))):
        for what, figures in measured.items():
            print(name, what, {key: round(value, 1) for key, value in figures.items()}, flush=True)


if __name__ == "__main__":
    main()
