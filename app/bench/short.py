"""A short measurement of a model that chats use: behind their answers, and ended at any time.

Its rows are of low priority, so chats go on. What else the engine did meanwhile is told with the figures.
"""

import threading
from typing import Protocol

from app.bench.measure import SLACK, Bench, Figures, Served, Stream
from app.bench.workload import RandomPrompts, Rows, Workload, default_workload
from app.models.port import Compiling, Vocabulary
from engine import EngineError, EngineStats, Priority

NEW = 48
"""Tokens that each row decodes."""
READ = 512
_POLL_SECONDS = 0.05


class Ended(Exception):
    """Somebody has ended the measurement."""


class Watched(Protocol):
    """The engine as far as it is looked at meanwhile."""

    def stats(self) -> EngineStats | None:
        """The newest snapshot."""


class ShortBench:
    """Measures once. `run` is for a thread of its own; everything else may be called by any thread."""

    def __init__(self, title: str, model: Served, vocabulary: Vocabulary, engine: Watched) -> None:
        """title: what the model is called in the figures."""
        self._title, self._model, self._engine = title, model, engine
        prompts = RandomPrompts(vocabulary.vocab_size, vocabulary.is_control, seed=id(self))
        self._bench = Bench(model, prompts, lambda _what: None, begin=self._begin)
        self._label = f"measuring {title}"
        self._part: list[tuple[Stream, int]] = []
        """The rows of what is measured now, and how many tokens each will have, prompt and all."""
        self._others: set[int] = set()
        self._ended = threading.Event()
        self._done, self._parts = 0, 1
        self.doing = "warming up"
        """What is measured now, in a few words."""

    def run(self) -> Figures:
        """Measure; raises `Ended` after `end`, `EngineError` for what cannot be measured."""
        try:
            figures = self._measure()
        except EngineError:
            if not self._ended.is_set():
                raise
        # Rows that were given up have ended somehow.
        if self._ended.is_set():
            raise Ended
        return figures

    def end(self) -> None:
        """Have `run` end soon: its rows are given up."""
        self._ended.set()
        for stream, _ in list(self._part):
            stream.give_up()

    @property
    def fraction(self) -> float:
        """How much of it is done, from 0 to 1."""
        stats, part = self._engine.stats(), list(self._part)
        computed = {s.sequence_id: s.computed_tokens for s in stats.sequences} if stats is not None else {}
        all_of = sum(tokens for _, tokens in part)
        done = sum(
            tokens if stream.finished is not None else computed.get(stream.sequence_id or 0, 0)
            for stream, tokens in part
        )
        return min(1.0, (self._done + (done / all_of if all_of else 0.0)) / self._parts)

    def look(self) -> int:
        """Return how many other answers the engine computes now, and remember them."""
        stats = self._engine.stats()
        live = stats.sequences if stats is not None else ()
        others = [s.sequence_id for s in live if s.label != self._label and not s.user_paused]
        self._others.update(others)
        return len(others)

    def _measure(self) -> Figures:
        from app.bench.machine import describe

        self._wait_until_ready()
        stats = self._engine.stats()
        if stats is None:
            raise EngineError("the engine is still starting")
        workload = Workload(self._rows(stats), (READ,), packed=None, new=NEW, repeat=1)
        self._parts = 2 + len(workload.rows)
        self._next("warming up", 0)
        self._bench.warm_up(workload)
        self._next(f"reading {READ} tokens", 1)
        read = self._bench.prefill(READ, workload.repeat)
        decode = []
        for done, rows in enumerate(workload.rows, 2):
            answers = "1 answer" if rows.count == 1 else f"{rows.count} answers at once"
            self._next(f"writing {answers}", done)
            decode.append(self._bench.decode(rows, NEW, workload.repeat))
        self.look()
        return {
            "model": self._title,
            "quantization": self._model.info.quantization,
            "device": stats.device,
            "machine": describe(stats.device),
            "kernels": stats.kernels,
            "prefill": read,
            "decode": decode,
            "others": others_text(len(self._others)),
        }

    def _rows(self, stats: EngineStats) -> tuple[Rows, ...]:
        """One row, and as many as context memory has room for, up to what `tui-chat bench` takes."""
        most = default_workload(stats.device, self._model.context_length).most_rows
        free = stats.kv_bytes_total - stats.kv_bytes_used
        row = (NEW + SLACK + stats.block_size) * max(1, self._model.info.kv_bytes_per_token)
        fits = min(most, free // row)
        return (Rows(1), Rows(fits)) if fits > 1 else (Rows(1),)

    def _wait_until_ready(self) -> None:
        """What is made ready beside it would slow down what is measured first."""
        while isinstance(self._model, Compiling) and self._model.compiling():
            self.doing = "waiting until later passes are ready"
            if self._ended.wait(_POLL_SECONDS):
                raise Ended

    def _next(self, doing: str, done: int) -> None:
        """A part begins behind `done` others."""
        self.look()
        self._part.clear()
        self._done, self.doing = done, doing

    def _begin(self, model: Served, prompt: tuple[int, ...], max_tokens: int) -> Stream:
        if self._ended.is_set():
            raise Ended
        stream = Stream(model, prompt, max_tokens, Priority.LOW, self._label)
        self._part.append((stream, len(prompt) + max_tokens))
        if self._ended.is_set():
            stream.give_up()
        return stream


def others_now(count: int) -> str:
    """Say while it is measured what else runs."""
    if not count:
        return "No other chat is answering now."
    what = "1 other answer is" if count == 1 else f"{count} other answers are"
    return f"{what} computed meanwhile, which the figures will show."


def others_text(count: int) -> str:
    """What else ran, in a sentence; it decides what the figures are worth."""
    if not count:
        return "No other answer was computed meanwhile."
    what = "1 other answer was" if count == 1 else f"{count} other answers were"
    return f"{what} computed meanwhile: these are the figures of a shared machine."
