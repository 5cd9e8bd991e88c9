"""Gaps between the tokens of one stream, by what went on meanwhile."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from engine.api.request import Finished, Request, SamplingParams, TextDelta
from engine.engine import Model


class Stream:
    """Answers that are written all the time; their tokens' times are taken on the engine's thread."""

    def __init__(self, model: Model, prompt: str) -> None:
        self._times: list[float] = []
        self._first: set[int] = set()
        """Numbers of the tokens that begin an answer: what is before them is no gap."""
        self._over = False
        self._spans: list[tuple[str, float, float]] = []
        self._model = model
        self._prompt = tuple(model.tokenizer.encode(prompt))
        self._begin()

    def _begin(self) -> None:
        self._first.add(len(self._times))
        room = self._model.max_tokens - len(self._prompt)
        request = Request(self._prompt, SamplingParams(temperature=0.0), max_tokens=room, ignore_eog=True)
        self._generation = self._model.submit(request)
        self._generation.set_listener(self._listen)

    def _listen(self) -> None:
        now = time.perf_counter()
        events = self._generation.poll()
        self._times += [now for event in events if isinstance(event, TextDelta)]
        if events and isinstance(events[-1], Finished) and not self._over:
            self._begin()

    def end(self) -> None:
        """Write no more."""
        self._over = True
        self._generation.cancel()

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Count the gaps in which this went on; the first such gap began before it."""
        started = time.perf_counter()
        yield
        self._spans.append((what, started, time.perf_counter()))

    def wait(self, tokens: int) -> None:
        """Until so many more tokens have come."""
        until = len(self._times) + tokens
        while len(self._times) < until:
            time.sleep(0.01)

    def report(self) -> str:
        """A row of a table for each thing that went on: seconds, tokens, gaps in milliseconds."""
        rows = ["| | s | tokens | p50 ms | p99 ms | longest ms |", "|---|---:|---:|---:|---:|---:|"]
        times = np.array(self._times)
        gaps = np.diff(times) * 1e3
        within = np.array([number not in self._first for number in range(1, len(times))])
        for what in dict.fromkeys(name for name, _, _ in self._spans):
            spans = [(start, end) for name, start, end in self._spans if name == what]
            inside = np.zeros(len(gaps), dtype=bool)
            for start, end in spans:
                inside |= (times[1:] > start) & (times[:-1] < end) & within
            seconds = sum(end - start for start, end in spans)
            own = gaps[inside] if inside.any() else np.array([np.nan])
            figures = (np.percentile(own, 50), np.percentile(own, 99), own.max())
            cells = " | ".join(f"{figure:.1f}" for figure in figures)
            rows.append(f"| {what} | {seconds:.2f} | {int(inside.sum())} | {cells} |")
        return "\n".join(rows)
