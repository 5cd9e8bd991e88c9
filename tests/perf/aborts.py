"""Random aborts at every phase of a request: `python -m tests.perf.aborts --count 10000 --seed 0`.

A real engine with a tiny model and little KV. Every request must end exactly once, nothing may reach
its consumer after the end, and no block may stay held. Printed is how long output went on after
`cancel` was called, and when the request had ended, its blocks free.
"""

import argparse
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from engine.api.generation import Generation
from engine.api.request import Finished, FinishReason, Priority, Request, SamplingParams
from engine.engine import Engine, Model
from engine.scheduler.plan import ModelBatch
from tests.support.fault_bench import Tap
from tests.support.tiny_gguf import make_tiny

ALIVE = 12
KV_BUDGET = 20 << 15
"""Twenty blocks: two requests of full length would not fit beside each other."""
TIMEOUT = 60.0
CHECK_EVERY = 1000
PHASES = ("queued", "reading", "token", "paused", "resumed", "during a pass", "any time", "after the end")


@dataclass(eq=False)
class Abort:
    """One request, when it is to be cancelled, and what its listener saw on the engine's thread."""

    phase: str
    wait_s: float
    at_token: int
    generation: Generation | None = None
    cancelled_at: float | None = None
    ticks: int = 0
    events: int = 0
    tokens: int = 0
    ends: list[Finished] = field(default_factory=list)
    last_token_at: float = 0.0
    ended_at: float = 0.0
    ended: threading.Event = field(default_factory=threading.Event)


class Aborts:
    """Keeps a dozen requests alive and cancels each at its phase."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random = Random(seed)
        self.engine = Engine(
            "cpu",
            weight_dtype="float32",
            kv_dtype="float32",
            kv_budget_bytes=KV_BUDGET,
            threads=1,
            debug=True,
        )
        self.model: Model = self.engine.load(path)
        self.phases: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.preempted = 0
        self.output_s: list[float] = []
        self.ended_s: list[float] = []
        self.ticks: Counter[int] = Counter()
        """Ticks that were settled between a cancellation and the end."""
        self._alive: list[Abort] = []
        self._in_pass: list[Abort] = []
        """Those to be cancelled by the engine's own thread, between plan and commit."""
        self.engine._loop.call(self._install)

    def run(self, count: int) -> None:
        """Make and abort `count` requests; raises AssertionError for the first thing that is wrong."""
        for number in range(count):
            while len(self._alive) >= ALIVE:
                self._settle()
            self._submit()
            if number % CHECK_EVERY == CHECK_EVERY - 1:
                self.check_idle()
        self.check_idle()

    def check_idle(self) -> None:
        """Wait for all that live, then look for blocks that nobody has."""
        while self._alive:
            self._settle()
        loop = self.engine._loop

        def bookkeeping() -> None:
            loop.scheduler.check()
            assert not loop.scheduler.sequences and not loop._outputs
            held = sum(resident.blocks.held for resident in loop.models)
            assert held == 0, f"{held} blocks were leaked"
            self.preempted = loop.scheduler.preemptions

        loop.call(bookkeeping)

    def _install(self) -> None:
        resident = self.engine._loop.models.get(self.model._key)
        tap = resident.runner = Tap(resident.runner, keep=False)
        tap.before = self._during_pass

    def _during_pass(self, batch: ModelBatch) -> None:
        while self._in_pass:
            self._cancel(self._in_pass.pop())

    def _submit(self) -> None:
        random = self.random
        phase = random.choice(PHASES)
        abort = Abort(
            phase,
            random.choice((0.0, 0.001, 0.01, 0.1)) * random.random(),
            random.randint(1, random.choice((5, 30, 120))),
        )
        length = random.choice((1, 31, 32, 33, 90)) if phase != "reading" else random.randint(150, 400)
        start = random.randrange(20, 40)
        request = Request(
            tuple(20 + (start + i) % 300 for i in range(length)),
            SamplingParams(temperature=random.choice((0.0, 1.0)), seed=random.randrange(1 << 32)),
            max_tokens=min(500 - length, random.choice((40, 90, 300))) if phase != "after the end" else 3,
            ignore_eog=True,
            priority=random.choice(list(Priority)),
        )
        generation = abort.generation = self.model.submit(request)
        generation.set_listener(lambda: self._listen(abort))
        if phase == "queued":
            self._cancel(abort)
        elif phase in ("paused", "resumed"):
            generation.pause()
        elif phase == "during a pass":
            self._in_pass.append(abort)
        self.phases[phase] += 1
        self._alive.append(abort)

    def _listen(self, abort: Abort) -> None:
        now = time.perf_counter()
        assert abort.generation is not None
        for event in abort.generation.poll():
            abort.events += 1
            if isinstance(event, Finished):
                abort.ends.append(event)
                abort.ended_at = now
                abort.ticks = self._ticks() - abort.ticks
                abort.ended.set()
            elif event.token_ids:
                abort.tokens += 1
                abort.last_token_at = now
        if abort.phase == "token" and abort.tokens >= abort.at_token:
            self._cancel(abort)

    def _cancel(self, abort: Abort) -> None:
        assert abort.generation is not None
        if abort.cancelled_at is None:
            abort.ticks = self._ticks()
            abort.cancelled_at = time.perf_counter()
        abort.generation.cancel()

    def _ticks(self) -> int:
        return self.engine._loop._stats._ticks

    def _settle(self) -> None:
        """Cancel the oldest, by its phase, and account it once it has ended."""
        abort = self._alive.pop(0)
        assert abort.generation is not None
        if abort.phase == "resumed":
            abort.generation.resume()
        if abort.phase in ("reading", "paused", "resumed", "any time"):
            time.sleep(abort.wait_s)
            self._cancel(abort)
            if self.random.random() < 0.3:
                self._cancel(abort)
        assert abort.ended.wait(TIMEOUT), f"a request ({abort.phase}) never ended"
        if abort.phase == "after the end":
            abort.generation.cancel()
        self._account(abort)

    def _account(self, abort: Abort) -> None:
        end = abort.ends[0]
        seen = abort.events
        time.sleep(0)
        assert len(abort.ends) == 1 and abort.events == seen, "something came after the end"
        assert end.completion_tokens == abort.tokens
        assert end.reason in (FinishReason.CANCELLED, FinishReason.LENGTH), end.error
        self.reasons[str(end.reason)] += 1
        if abort.cancelled_at is not None and end.reason is FinishReason.CANCELLED:
            self.output_s.append(max(0.0, abort.last_token_at - abort.cancelled_at))
            self.ended_s.append(max(0.0, abort.ended_at - abort.cancelled_at))
            self.ticks[abort.ticks] += 1


def new_engine() -> Engine:
    """With little KV and every check."""
    return Engine(
        "cpu", weight_dtype="float32", kv_dtype="float32", kv_budget_bytes=KV_BUDGET, threads=1, debug=True
    )


def quantiles(seconds: list[float]) -> str:
    """p50 / p99 / max in ms."""
    ordered = sorted(seconds) or [0.0]
    shown = (ordered[len(ordered) // 2], ordered[int(0.99 * (len(ordered) - 1))], ordered[-1])
    return " / ".join(f"{1e3 * value:.2f}" for value in shown)


def abort_at_random(count: int, seed: int) -> str:
    """Run and describe what happened."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = make_tiny(Path(folder) / "tiny.gguf", "qwen3", quant="Q8_0", width=64, ffn=64, head_dim=32)
        made = Aborts(path, seed)
        try:
            made.run(count)
        finally:
            made.engine.close()
    phases = ", ".join(f"{name} {number}" for name, number in sorted(made.phases.items()))
    reasons = ", ".join(f"{name} {number}" for name, number in sorted(made.reasons.items()))
    within = sum(number for ticks, number in made.ticks.items() if ticks <= 1)
    return (
        f"{count} requests in {time.perf_counter() - started:.1f} s ({phases}): each ended once ({reasons}), "
        f"no block was leaked, {made.preempted} pauses for memory\n"
        f"output after cancel: {quantiles(made.output_s)} ms (p50 / p99 / max); "
        f"ended, blocks free: {quantiles(made.ended_s)} ms\n"
        f"{within} of {len(made.ended_s)} ended before a second tick was over, the last after "
        f"{max(made.ticks, default=0)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(abort_at_random(options.count, options.seed))


if __name__ == "__main__":
    main()
