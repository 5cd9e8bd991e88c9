"""Random submits, cancels, unloads and reloads: `python -m tests.perf.facade_soak --count 2000`.

Several threads use one engine with little KV and two models that come and go. Every request must end
exactly once, with as many ids as its end says, and no block may stay held.
"""

import argparse
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from random import Random

from engine.engine import Engine, Model
from engine.errors import EngineClosedError
from engine.generation import Generation
from engine.request import Event, Finished, FinishReason, Priority, Request, SamplingParams, TextDelta
from tests.tiny_gguf import make_tiny

CLIENTS = 3
KV_BUDGET = 3 << 20
TIMEOUT = 60.0
_LATE = Finished(FinishReason.ERROR, "late", 0, 0, 0, queue_ms=0.0, ttft_ms=None, tok_s=0.0)


class Soak:
    """One engine, the models that are resident now, and every request made."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.files = [
            make_tiny(folder / "one.gguf", "qwen3", quant="Q8_0", seed=1, width=64, ffn=64, head_dim=32),
            make_tiny(folder / "two.gguf", "llama", quant="Q8_0", seed=2, width=64, ffn=64, head_dim=32),
        ]
        self.seed = seed
        self.engine = Engine("cpu", weight_dtype="float32", kv_budget_bytes=KV_BUDGET, threads=1, debug=True)
        self.models: list[Model] = [self.engine.load(file) for file in self.files]
        self.requests: list[tuple[Generation, list[Event]]] = []
        self.happened: Counter[str] = Counter()
        self.failures: list[BaseException] = []
        self._consuming = threading.Lock()
        """A generation has one consumer at a time."""
        self._reloading = threading.Lock()

    def client(self, number: int, count: int) -> None:
        """Do `count` random things."""
        random = Random(self.seed * 100 + number)
        try:
            for _ in range(count):
                self._step(random)
        except BaseException as error:
            self.failures.append(error)

    def run(self, count: int) -> None:
        """All clients, then the books. Raises AssertionError for the first thing that is wrong."""
        threads = [
            threading.Thread(target=self.client, args=(i, count // CLIENTS), daemon=True)
            for i in range(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failures:
            raise self.failures[0]
        for generation, events in self.requests:
            self._check_end(generation, events)
        self._check_books()
        self.engine.close()
        assert not self.engine.stats().sequences and not self.engine.stats().models

    def _step(self, random: Random) -> None:
        action = random.random()
        if action < 0.5:
            self._submit(random)
        elif action < 0.56 and self.requests:
            random.choice(self.requests[-20:])[0].cancel()
        elif action < 0.88 and self.requests:
            generation, events = random.choice(self.requests[-20:])
            with self._consuming:
                events += generation.poll()
        elif action < 0.885:
            self._reload(random)
        else:
            time.sleep(random.random() * 0.05)

    def _submit(self, random: Random) -> None:
        start = random.randrange(20, 40)
        prompt = tuple(20 + (start + i) % 300 for i in range(random.choice((1, 5, 31, 32, 33, 90, 250))))
        params = SamplingParams(temperature=random.choice((0.0, 1.0)), seed=random.randrange(1 << 32))
        request = Request(
            prompt,
            params,
            max_tokens=random.choice((1, 2, 20, 60)),
            stop=random.choice(((), ("e",), ("ab", "zz"))),
            ignore_eog=random.random() < 0.5,
            priority=random.choice(list(Priority)),
        )
        try:
            generation = random.choice(self.models).submit(request)
        except EngineClosedError:
            self.happened["refused"] += 1
            return
        self.requests.append((generation, []))
        if random.random() < 0.1:
            generation.cancel()

    def _reload(self, random: Random) -> None:
        index = random.randrange(len(self.files))
        with self._reloading:
            old = self.models[index]
            old.unload()
            self.models[index] = self.engine.load(self.files[index])
        self.happened["reloads"] += 1

    def _check_end(self, generation: Generation, events: list[Event]) -> None:
        watchdog = threading.Timer(TIMEOUT, generation.push, [_LATE])
        watchdog.start()
        events += generation.events()
        watchdog.cancel()
        end = events[-1]
        assert isinstance(end, Finished) and end is not _LATE, "a request never ended"
        assert sum(isinstance(event, Finished) for event in events) == 1
        ids = sum(len(event.token_ids) for event in events if isinstance(event, TextDelta))
        assert ids == end.completion_tokens, f"{ids} ids but {end.completion_tokens} were counted"
        unloaded = end.error is not None and "was unloaded" in end.error
        assert end.reason is not FinishReason.ERROR or unloaded, end.error
        assert list(generation.events()) == []
        self.happened[str(end.reason)] += 1

    def _check_books(self) -> None:
        loop = self.engine._loop

        def books() -> None:
            loop.scheduler.check()
            assert not loop.scheduler.sequences and not loop._answers
            residents = loop._models.values()
            assert all(resident.blocks.held == 0 for resident in residents), "blocks are still held"
            kept = sum(resident.blocks.cached * resident.blocks.block_bytes for resident in residents)
            assert kept == loop._budget.used_bytes, "bytes are counted that no block has"

        for model in set(self.models):
            model.submit(Request((20,), max_tokens=1)).result(TIMEOUT)
        loop.call(books)


def soak(count: int, seed: int) -> str:
    """Run and describe what happened."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        made = Soak(Path(folder), seed)
        try:
            made.run(count)
        finally:
            made.engine.close()
    seconds = time.perf_counter() - started
    ends = ", ".join(f"{name} {number}" for name, number in sorted(made.happened.items()))
    return f"{count} actions, {len(made.requests)} requests in {seconds:.1f} s, each ended once: {ends}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(soak(options.count, options.seed))


if __name__ == "__main__":
    main()
