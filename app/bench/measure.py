"""Running a workload on an engine and timing every token when it becomes readable in its stream.

The time is taken by the stream's listener, on the engine's thread, at the moment when a waiting tab
is told. So a figure holds everything that the engine does for a token, text included, and neither the
wake-up of a measuring thread nor the period of a polling one. Nothing is smoothed: an arrival of
several tokens at once is one arrival, and the wait before it one gap.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from app.bench.statistics import (
    Arrival,
    gaps_inside,
    gaps_touching,
    longest,
    median,
    percentile,
    tokens_per_second,
)
from app.bench.workload import Prompts, RandomPrompts, Rows, Workload
from app.models.port import SequencePort
from engine import EngineError, Finished, FinishReason, Priority, Request, SamplingParams

if TYPE_CHECKING:
    from engine import TickRecord

GREEDY = SamplingParams(temperature=0.0)
SLACK = 64
"""Extra tokens per row, so that rows which start a few ticks apart still run together long enough."""
WORST = 8
"""Longest gaps that are reported with what the engine did in them."""
Say = Callable[[str], None]
Figures = dict[str, object]


class Served(Protocol):
    """What is asked of a model that is measured."""

    @property
    def name(self) -> str:
        """Its title."""

    @property
    def info(self) -> Any:
        """`engine.ModelInfo`."""

    @property
    def context_length(self) -> int:
        """Most tokens of one sequence."""

    def submit(self, request: Request) -> SequencePort:
        """Start a generation."""


class Stream:
    """One running generation and when its tokens arrived."""

    def __init__(
        self,
        model: Served,
        prompt: tuple[int, ...],
        max_tokens: int,
        priority: Priority = Priority.NORMAL,
        label: str = "bench",
    ) -> None:
        request = Request(prompt, GREEDY, max_tokens, ignore_eog=True, label=label, priority=priority)
        self.arrivals: list[Arrival] = []
        self.tokens = 0
        self.finished: Finished | None = None
        self._changed = threading.Condition()
        self.submitted = time.perf_counter()
        self._generation = model.submit(request)
        self._generation.set_listener(self._take)

    @property
    def sequence_id(self) -> int | None:
        """Its number in the engine."""
        return self._generation.sequence_id

    def wait_first(self) -> float:
        """Block until the first token; returns seconds since the submit."""
        self.wait_tokens(1)
        if not self.arrivals:
            self.wait()
            raise EngineError("bench: a generation ended without any token")
        return self.arrivals[0].time - self.submitted

    def wait_tokens(self, count: int) -> None:
        """Block until that many tokens arrived or the generation ended."""
        with self._changed:
            self._changed.wait_for(lambda: self.tokens >= count or self.finished is not None)

    def wait(self) -> None:
        """Block until the generation ended; its error is raised."""
        with self._changed:
            self._changed.wait_for(lambda: self.finished is not None)
        assert self.finished is not None
        if self.finished.reason is FinishReason.ERROR:
            raise EngineError(f"bench: a generation ended with an error: {self.finished.error}")

    def cancel(self) -> None:
        """End it now."""
        self.give_up()
        self.wait()

    def give_up(self) -> None:
        """Ask for its end, without waiting for that."""
        self._generation.cancel()

    def _take(self) -> None:
        """Note what arrived; called on the engine's thread, and once by `set_listener`'s caller."""
        now = time.perf_counter()
        with self._changed:
            for event in self._generation.poll():
                if isinstance(event, Finished):
                    self.finished = event
                elif event.token_ids:
                    self.arrivals.append(Arrival(now, len(event.token_ids)))
                    self.tokens += len(event.token_ids)
            self._changed.notify_all()


@dataclass(frozen=True)
class Bench:
    """A loaded model under test."""

    model: Served
    prompts: RandomPrompts
    say: Say
    tick_log: "Callable[[], Sequence[TickRecord]]" = list
    """`Engine.tick_log` of the model's engine."""
    begin: Callable[[Served, tuple[int, ...], int], Stream] = Stream
    """Starts a generation of so many tokens behind a prompt."""

    def first_token(self) -> float:
        """Seconds from submitting a short prompt to its first token."""
        stream = self.begin(self.model, self.prompts.make(32), 1)
        seconds = stream.wait_first()
        stream.wait()
        return seconds

    def warm_up(self, workload: Workload) -> None:
        """Run a little of everything once, so that first-use costs are in no figure."""
        self.say("warm-up")
        for count in sorted({1, *(rows.count for rows in workload.rows)}):
            streams = [self.begin(self.model, self.prompts.make(32), 16) for _ in range(count)]
            for stream in streams:
                stream.wait()

    def prefill(self, tokens: int, repeat: int) -> Figures:
        """Read fresh prompts one after another: tokens per second from submit to first token."""
        fitting = min(tokens, self.model.context_length - 1)
        if fitting < tokens:
            self.say(f"prefill {tokens}: the context holds {self.model.context_length}; {fitting} are read")
        self.say(f"prefill {fitting}")
        seconds = []
        for _ in range(repeat):
            stream = self.begin(self.model, self.prompts.make(fitting), 1)
            seconds.append(stream.wait_first())
            stream.wait()
        middle = median(seconds)
        return {"tokens": fitting, "tok_s": _round(fitting / middle), "ttft_ms": _ms(middle)}

    def decode(self, rows: Rows, new: int, repeat: int) -> Figures:
        """Total decode speed of rows behind their context."""
        self.say(f"decode {rows.count} rows at depth {rows.depth}")
        speeds = [self._decode_once(rows.count, rows.depth, new) for _ in range(repeat)]
        return {"rows": rows.count, "depth": rows.depth, "tok_s": _round(median(speeds))}

    def packed(self, packed: Prompts, repeat: int) -> Figures:
        """Prompts submitted at once against the same number one after another."""
        self.say(f"packed {packed}")
        together, one_by_one = [], []
        for _ in range(repeat):
            together.append(self._read_all(packed, at_once=True))
            one_by_one.append(self._read_all(packed, at_once=False))
        total, fast, slow = packed.count * packed.tokens, median(together), median(one_by_one)
        return {
            "prompts": packed.count,
            "tokens": packed.tokens,
            "tok_s": _round(total / fast),
            "one_by_one_tok_s": _round(total / slow),
            "ratio": _round(slow / fast),
        }

    def stall(self, long: Prompts, workload: Workload) -> Figures:
        """How long the most rows of the workload wait for a token while long prompts are read."""
        rows = workload.most_rows
        idle: list[float] = []
        loaded: list[float] = []
        first: list[float] = []
        worst: list[Figures] = []
        for number in range(workload.repeat):
            self.say(f"stall {long} beside {rows} rows, {number + 1} of {workload.repeat}")
            quiet, busy, seconds = self._stall_once(long, rows, workload, worst)
            idle += quiet
            loaded += busy
            first.append(seconds)
        if not idle or not loaded:
            raise EngineError(
                f"bench: the rows reached the context's end ({self.model.context_length} tokens) before the "
                "prompts were read; give a smaller --new or --depth"
            )
        return {
            "rows": rows,
            "prompts": long.count,
            "tokens": long.tokens,
            "idle_ms": {"p50": _ms(percentile(idle, 50)), "p99": _ms(percentile(idle, 99))},
            "loaded_ms": {
                "p50": _ms(percentile(loaded, 50)),
                "p99": _ms(percentile(loaded, 99)),
                "max": _ms(max(loaded)),
            },
            "ttft_ms": _ms(median(first)),
            "gaps": {"idle": len(idle), "loaded": len(loaded)},
            "worst": sorted(worst, key=_gap, reverse=True)[:WORST],
        }

    def _decode_once(self, rows: int, depth: int, new: int) -> float:
        contexts = [self.prompts.make(max(1, depth)) for _ in range(rows)]
        if depth:
            # Read once so that the rows below find their context in the prefix cache and start together.
            for context in contexts:
                self.begin(self.model, context, 1).wait()
        limit = min(new + SLACK, self.model.context_length - max(1, depth))
        streams = [self.begin(self.model, context, limit) for context in contexts]
        for stream in streams:
            stream.wait()
        try:
            return tokens_per_second([stream.arrivals for stream in streams])
        except ValueError as error:
            raise EngineError(f"bench: {rows} rows at depth {depth}: {error}") from None

    def _read_all(self, packed: Prompts, *, at_once: bool) -> float:
        fresh = [self.prompts.make(packed.tokens) for _ in range(packed.count)]
        started = time.perf_counter()
        streams: list[Stream] = []
        for prompt in fresh:
            streams.append(self.begin(self.model, prompt, 1))
            if not at_once:
                streams[-1].wait_first()
        for stream in streams:
            stream.wait_first()
        seconds = max(stream.arrivals[0].time for stream in streams) - started
        for stream in streams:
            stream.wait()
        return seconds

    def _stall_once(
        self, long: Prompts, rows: int, workload: Workload, worst: list[Figures]
    ) -> tuple[list[float], list[float], float]:
        depth = max(1, workload.stall_depth)
        # No tick reads fewer than one prompt token, so this many tokens cannot run out before the end.
        limit = min(self.model.context_length - depth, 2 * workload.new + long.count * long.tokens)
        fresh = [self.prompts.make(long.tokens) for _ in range(long.count)]
        running = [self.begin(self.model, self.prompts.make(depth), limit) for _ in range(rows)]
        for stream in running:
            stream.wait_first()
        quiet_from = max(stream.arrivals[0].time for stream in running)
        wanted = [stream.tokens + workload.new for stream in running]
        for stream, tokens in zip(running, wanted, strict=True):
            stream.wait_tokens(tokens)
        loaded_from = time.perf_counter()
        readers = [self.begin(self.model, prompt, 1) for prompt in fresh]
        seconds = max(reader.wait_first() for reader in readers)
        loaded_to = max(reader.arrivals[0].time for reader in readers)
        for stream in running:
            if stream.arrivals[-1].time < loaded_to and stream.finished is None:
                stream.wait_tokens(stream.tokens + 1)
        self._check_running(running, loaded_to)
        worst += self._worst(running, loaded_from, loaded_to)
        for stream in [*running, *readers]:
            stream.cancel()
        idle = [gap for stream in running for gap in gaps_inside(stream.arrivals, quiet_from, loaded_from)]
        loaded = [gap for stream in running for gap in gaps_touching(stream.arrivals, loaded_from, loaded_to)]
        return idle, loaded, seconds

    def _worst(self, running: Sequence[Stream], start: float, end: float) -> list[Figures]:
        """The longest waits and the ticks that ended in each."""
        waits = longest([list(stream.arrivals) for stream in running], start, end, WORST)
        log = self.tick_log()
        return [
            {"gap_ms": _ms(to - since), "ticks": [_tick(r) for r in log if since < r.ended_at <= to]}
            for since, to in waits
        ]

    def _check_running(self, running: Sequence[Stream], until: float) -> None:
        ended = sum(stream.finished is not None and stream.arrivals[-1].time < until for stream in running)
        if ended:
            self.say(
                f"note: {ended} of {len(running)} rows reached the context's end before the prompts were read"
            )


def _gap(wait: Figures) -> float:
    milliseconds = wait["gap_ms"]
    assert isinstance(milliseconds, float)
    return milliseconds


def _tick(record: "TickRecord") -> Figures:
    """A tick of the log as `--json` prints it."""
    figures = record._asdict()
    del figures["ended_at"]
    return figures | {
        "predicted_ms": round(record.predicted_ms, 3),
        "measured_ms": round(record.measured_ms, 3),
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def _round(value: float) -> float:
    return round(value, 2)
