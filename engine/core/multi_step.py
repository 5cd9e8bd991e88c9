"""Several ticks of the same decode rows in flight, so that the device never waits for the host.

A tick of a few rows takes a GPU 2 ms; what the host does between two ticks, beside a UI that draws,
can take 20. So the rows of one plan are launched again and again before their ids are read: each
tick's sampled ids are the next one's input on the device. A row that ends does so when its id is
read; what later ticks computed for it is dropped, and its blocks are freed once nothing in flight
writes to them. Whatever needs another plan (a new request, a cancellation, a row's end) waits for
the ticks that are launched, and no more are.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from engine.runner.base import Runner
from engine.runner.sampler import Sampled
from engine.scheduler.plan import ModelBatch


@dataclass(frozen=True, slots=True)
class Step:
    """One tick that came back."""

    sampled: Sampled
    started: float
    """`time.perf_counter()` when the tick before it came back, or when the first was launched."""
    ended: float
    in_flight: int
    """Ticks launched and not collected."""
    error: Exception | None = None
    """What was raised, so that nothing was sampled: this tick and those behind it are dropped."""


class MultiStep:
    """Iterates over the ticks of a batch of decode rows, keeping the device's queue filled meanwhile.

    Each tick must be committed before the next is asked for.
    """

    def __init__(self, batch: ModelBatch, runner: Runner, extend: Callable[[int], bool]) -> None:
        """extend: asked with the ticks in flight whether one more may be launched; takes its blocks."""
        self._batch = batch
        self._runner = runner
        self._extend = extend
        self.extending = True
        """Whether more may be launched; what is in flight comes back in any case."""
        self._in_flight = 0
        # What may come next follows from a token that the host has read: one pass runs meanwhile.
        self._max_ahead = min(runner.max_ahead, 1) if batch.chosen_apart else runner.max_ahead

    def __iter__(self) -> Iterator[Step]:
        """Yield tick after tick until none is in flight and no more may be launched."""
        read_at = time.perf_counter()
        while self._in_flight or self.extending:
            failure: Exception | None = None
            try:
                self._fill_queue()
                sampled = self._runner.collect()
            except Exception as error:
                failure = error
            if failure is not None:
                # Not while it is handled: a generator at rest would keep its traceback, and that the weights.
                yield Step(Sampled({}, {}), read_at, time.perf_counter(), 0, failure)
                return
            self._in_flight -= 1
            now = time.perf_counter()
            yield Step(sampled, read_at, now, self._in_flight)
            read_at = now
            self.extending = self.extending and self._extend(self._in_flight)

    def _fill_queue(self) -> None:
        while self.extending and self._in_flight <= self._max_ahead:
            if not self._in_flight:
                self._runner.begin(self._batch)
            self._runner.launch(self._batch)
            self._in_flight += 1
            self.extending = self._extend(self._in_flight)
