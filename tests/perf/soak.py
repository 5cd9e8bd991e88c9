"""Random mixed load for a long time: `python -m tests.perf.soak --minutes 30 --seed 0`.

On a GPU: `--minutes 8 --device cuda --model FILE --kv-mib 512`; KV must be too small for a dozen tabs.

Tabs join, leave, are cancelled, paused, ranked, focused, forked and continued, with less KV than they
want, while a second model comes and goes. Every request must end exactly once with as many ids as its
end says, and no block may stay held. Printed are the drift of resident and of a GPU's memory and the gaps
between a row's tokens; the command fails when resident memory drifts by more than 10 MiB, a GPU's at all,
or when the p99 gap of the last tenth of the time is more than 1.2 times that of the first. A GPU's memory
is compared at rest, after the warm-up and at the end: no request runs, one model is there, and what the
allocator keeps for the next long prompt is given back.
"""

import argparse
import gc
import sys
import tempfile
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import torch

from app.models.builtin import builtin_model_path
from engine.api.errors import EngineClosedError
from engine.api.generation import Generation
from engine.api.request import Finished, FinishReason, Priority, Request, SamplingParams
from engine.device.memory import process_bytes, return_freed_memory
from engine.engine import Engine, Model
from engine.runner.graph_runner import GraphRunner
from tests.support.tiny_gguf import make_tiny

CLIENTS = 2
TABS = 6
"""Requests that each client keeps alive at most."""
MOST_DRIFT = 10 << 20
MOST_RATIO = 1.2
WARM_UP = 0.1
"""Part of the time before anything is measured: all KV has been written to, buffers have their sizes."""
SAMPLE_S = 0.5
TIMEOUT = 120.0


@dataclass(eq=False)
class Tab:
    """One request and what its listener saw on the engine's thread."""

    generation: Generation
    tokens: list[int]
    """Prompt and answer."""
    ends: list[Finished] = field(default_factory=list)
    answered: int = 0
    paused: bool = False
    last_at: float | None = None
    """When the last token came, if the row has decoded since."""
    preemptions: int = 0
    ended: threading.Event = field(default_factory=threading.Event)


class Gaps:
    """Milliseconds between a row's tokens, of one stretch of time."""

    def __init__(self) -> None:
        self.start = self.end = 0.0
        self.values = array("f")

    def add(self, now: float, seconds: float) -> None:
        if self.start <= now < self.end:
            self.values.append(seconds * 1e3)

    @property
    def p99(self) -> float:
        ordered = sorted(self.values) or [0.0]
        return ordered[int(0.99 * (len(ordered) - 1))]


class Soak:
    """One engine, a model that stays, one that comes and goes, and clients that do random things."""

    def __init__(
        self, stays: Path, goes: Path, kv_budget: int, seed: int, *, debug: bool, device: str = "cpu"
    ) -> None:
        self.goes, self.seed = goes, seed
        self.engine = Engine(device, kv_budget_bytes=kv_budget, debug=debug)
        self.models: list[Model] = [self.engine.load(stays), self.engine.load(goes)]
        self.longest = min(kv_budget // self.models[0].info.kv_bytes_per_token, 512) - 100
        self._counting = threading.Lock()
        self.happened: Counter[str] = Counter()
        self.first, self.last = Gaps(), Gaps()
        self.memory: list[tuple[float, int]] = []
        """(time, resident bytes)."""
        self.device_drift = 0
        """Bytes of a GPU that are in use at rest at the end and were not after the warm-up."""
        self._pauses, self._ends = threading.Event(), False
        self._met = threading.Barrier(CLIENTS + 1)
        self.tell: Callable[[str], None] = lambda _line: None
        self._touch_all_kv(kv_budget)
        self._failures: list[BaseException] = []
        self._reloading = threading.Lock()

    def _touch_all_kv(self, kv_budget: int) -> None:
        """Pages of KV that were never written take no memory yet, and would look like a drift."""
        model = self.models[0]
        held = min(model.context_length, kv_budget // model.info.kv_bytes_per_token // 64 * 64)
        request = Request((20,) * (held - 32), max_tokens=1, ignore_eog=True)
        assert model.submit(request).result(TIMEOUT)[1].reason is FinishReason.LENGTH

    def run(self, seconds: float, tell: Callable[[str], None] | None = None) -> None:
        """Everything; raises AssertionError for the first thing that is wrong.

        `tell` gets a line about every tenth of the time.
        """
        if tell is not None:
            self.tell = tell
        threads = [threading.Thread(target=self._client, args=(i,), daemon=True) for i in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            self._watch(WARM_UP * seconds)
            before = self._rest()
            start, tenth = time.monotonic(), (1 - WARM_UP) * seconds / 10
            self.first.start, self.first.end = start, start + tenth
            self.last.start, self.last.end = start + 9 * tenth, start + 10 * tenth
            self._watch(10 * tenth)
            self.device_drift = self._rest(end=True) - before
        except threading.BrokenBarrierError:
            pass
        for thread in threads:
            thread.join(TIMEOUT)
        if self._failures:
            raise self._failures[0]
        self._check_books()
        self.engine.close()

    def _watch(self, seconds: float) -> None:
        start = told = time.monotonic()
        while (now := time.monotonic()) < start + seconds and not self._failures:
            resident = process_bytes()
            if not (self.first.end < now < self.last.start):
                self.memory.append((now, resident))
            if now - told >= seconds / 10:
                told = now
                self.tell(
                    f"{now - start:.0f} of {seconds:.0f} s: {sum(self.happened.values())} events, resident "
                    f"{resident / (1 << 20):.1f} MiB, GPU {self._device_bytes() / (1 << 20):.1f} MiB"
                )
            time.sleep(min(SAMPLE_S, seconds / 100))

    def _rest(self, end: bool = False) -> int:
        """Bytes of a GPU in use while nothing runs and only the model that stays is there.

        At the `end` the clients end; else they and the other model go on.
        """
        self._ends = end
        self._pauses.set()
        self._met.wait(TIMEOUT)
        while any(model.compiling() for model in self.models):
            time.sleep(0.01)
        self.models[1].unload()
        gc.collect()
        return_freed_memory()
        used = self._device_bytes()
        self.tell(f"at rest: {used / (1 << 20):.1f} MiB of a GPU, {self._held_at_rest()}")
        if not end:
            self.models[1] = self.engine.load(self.goes)
        self._pauses.clear()
        self._met.wait(TIMEOUT)
        return used

    @property
    def drift(self) -> int:
        """Bytes of resident memory from the first tenth to the last, by medians."""
        return self._median(self.last) - self._median(self.first)

    def _median(self, gaps: Gaps) -> int:
        values = sorted(resident for at, resident in self.memory if gaps.start <= at < gaps.end) or [0]
        return values[len(values) // 2]

    def _device_bytes(self) -> int:
        if not self.engine.device.startswith("cuda"):
            return 0
        free, total = torch.cuda.mem_get_info()
        return total - free

    def _held_at_rest(self) -> str:
        """What the process holds, part by part: it says where a drift comes from."""
        if not self.engine.device.startswith("cuda"):
            return f"{process_bytes() / (1 << 20):.1f} MiB resident"
        runners = [resident.runner for resident in self.engine._loop.models]
        passes = [
            one for runner in runners if isinstance(runner, GraphRunner) for one in runner._passes.values()
        ]
        parts = (torch.cuda.memory_reserved(), torch.cuda.memory_allocated(), process_bytes())
        reserved, allocated, resident = (f"{part / (1 << 20):.1f}" for part in parts)
        return (
            f"{sum(one.captured for one in passes)} graphs of {len(passes)} shapes, "
            f"reserved {reserved}, allocated {allocated}, resident {resident} MiB"
        )

    def _client(self, number: int) -> None:
        random = Random(self.seed * 100 + number)
        alive: list[Tab] = []
        ended: list[list[int]] = []
        try:
            while not self._failures:
                self._step(random, alive, ended)
                for tab in [tab for tab in alive if tab.ended.is_set()]:
                    alive.remove(tab)
                    self._check_end(tab)
                    ended[:] = [*ended[-4:], list(tab.tokens)]
                if self._pauses.is_set():
                    self._let_end(alive)
                    self._met.wait(TIMEOUT)
                    self._met.wait(TIMEOUT)
                    if self._ends:
                        return
        except threading.BrokenBarrierError:
            return
        except BaseException as error:
            self._failures.append(error)
            self._met.abort()

    def _let_end(self, alive: list[Tab]) -> None:
        for tab in alive:
            tab.generation.resume()
        for tab in alive:
            assert tab.ended.wait(TIMEOUT), "a request never ended"
            self._check_end(tab)
        alive.clear()

    def _step(self, random: Random, alive: list[Tab], ended: list[list[int]]) -> None:
        action = random.random()
        tab = random.choice(alive) if alive else None
        if action < 0.25:
            if len(alive) < TABS:
                self._submit(random, alive, ended)
        elif action < 0.253 and tab is not None:
            tab.generation.cancel()
        elif action < 0.27 and tab is not None:
            tab.paused = True
            tab.generation.pause()
        elif action < 0.3:
            for paused in [tab for tab in alive if tab.paused]:
                paused.paused = False
                paused.generation.resume()
        elif action < 0.31 and tab is not None:
            tab.generation.set_priority(random.choice(list(Priority)))
        elif action < 0.33:
            self.engine.focus(random.choice([None, *(tab.generation.sequence_id for tab in alive)]))
        elif action < 0.331:
            self._reload()
        else:
            time.sleep(random.random() * 0.05)

    def _submit(self, random: Random, alive: list[Tab], ended: list[list[int]]) -> None:
        model, known = self.models[random.random() < 0.15], [list(tab.tokens) for tab in alive] + ended
        what = random.choice(("new", "fork", "continue")) if known else "new"
        prompt = [random.randrange(20, 300) for _ in range(random.choice((1, 8, 33, 90)))]
        if what != "new":
            earlier = random.choice(known)
            kept = random.randint(1, len(earlier)) if what == "fork" else len(earlier)
            prompt = [token % 300 for token in earlier[:kept]] + prompt
        elif random.random() < 0.2:
            prompt *= 1 + self.longest // len(prompt)
        request = Request(
            tuple(prompt[: self.longest]),
            SamplingParams(temperature=random.choice((0.0, 1.0)), seed=random.randrange(1 << 32)),
            max_tokens=random.choice((1, 20, 60, 90)),
            stop=random.choice(((), ("e",))) if random.random() < 0.1 else (),
            ignore_eog=random.random() < 0.9,
            priority=random.choice(list(Priority)),
        )
        try:
            tab = Tab(model.submit(request), list(request.prompt_ids))
        except EngineClosedError:
            self._count("refused")
            return
        tab.generation.set_listener(lambda: self._listen(tab))
        alive.append(tab)
        self._count(what)

    def _count(self, what: str) -> None:
        # A counter's += is two steps, and another thread may stand between them.
        with self._counting:
            self.happened[what] += 1

    def _listen(self, tab: Tab) -> None:
        now = time.monotonic()
        sequence = self.engine._loop.scheduler.sequences.get(tab.generation.sequence_id)
        for event in tab.generation.poll():
            if isinstance(event, Finished):
                tab.ends.append(event)
                tab.ended.set()
                return
            tab.tokens += event.token_ids
            tab.answered += len(event.token_ids)
        waited = sequence is None or tab.paused or sequence.preemptions != tab.preemptions
        if tab.last_at is not None and not waited:
            self.first.add(now, now - tab.last_at)
            self.last.add(now, now - tab.last_at)
        tab.last_at = None if waited else now
        tab.preemptions = tab.preemptions if sequence is None else sequence.preemptions

    def _reload(self) -> None:
        with self._reloading:
            self.models[1].unload()
            self.models[1] = self.engine.load(self.goes)
        self._count("reloads")

    def _check_end(self, tab: Tab) -> None:
        (end,) = tab.ends
        assert tab.answered == end.completion_tokens, "ids were lost"
        assert end.reason is not FinishReason.ERROR or "unloaded" in (end.error or ""), end.error
        assert tab.generation.poll() == []
        self._count(str(end.reason))

    def _check_books(self) -> None:
        loop = self.engine._loop

        def bookkeeping() -> None:
            loop.scheduler.check()
            assert not loop.scheduler.sequences and not loop._outputs
            residents = list(loop.models)
            assert all(resident.blocks.held == 0 for resident in residents), "blocks are still held"
            kept = sum(resident.blocks.cached * resident.blocks.block_bytes for resident in residents)
            assert kept == loop.models.budget.used_bytes, "bytes are counted that no block has"
            self.happened["pauses for memory"] = loop.scheduler.preemptions

        loop.call(bookkeeping)


def soak(
    seconds: float,
    seed: int,
    *,
    stays: Path | None = None,
    debug: bool = False,
    device: str = "cpu",
    kv_budget: int = 1 << 20,
    tell: Callable[[str], None] | None = None,
) -> Soak:
    """Run on the built-in model, or another; returns what was measured."""
    with tempfile.TemporaryDirectory() as folder:
        goes = make_tiny(Path(folder) / "goes.gguf", "llama", quant="Q8_0", width=64, ffn=64, head_dim=32)
        made = Soak(stays or builtin_model_path(), goes, kv_budget, seed, debug=debug, device=device)
        try:
            made.run(seconds, tell)
        finally:
            made.engine.close()
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--kv-mib", type=int, default=40)
    options = parser.parse_args()
    made = soak(
        options.minutes * 60,
        options.seed,
        stays=options.model,
        device=options.device,
        kv_budget=options.kv_mib << 20,
        tell=lambda line: print(line, file=sys.stderr, flush=True),
    )
    ratio = made.last.p99 / made.first.p99 if made.first.p99 else 0.0
    happened = ", ".join(f"{name} {number}" for name, number in sorted(made.happened.items()))
    print(
        f"{options.minutes:g} minutes, every request ended once, no block is held: {happened}\n"
        f"resident memory drifted by {made.drift / (1 << 20):+.1f} MiB, "
        f"a GPU's by {made.device_drift / (1 << 20):+.1f} MiB\n"
        f"p99 gap {made.first.p99:.1f} ms in the first tenth ({len(made.first.values)} gaps), "
        f"{made.last.p99:.1f} ms in the last ({len(made.last.values)}): {ratio:.2f} times"
    )
    sys.exit(made.drift > MOST_DRIFT or made.device_drift > 0 or ratio > MOST_RATIO)


if __name__ == "__main__":
    main()
