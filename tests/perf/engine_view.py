"""What the engine view costs the user interface's thread, and its close looks the engine's.

`python -m tests.perf.engine_view [--tabs 8] [--tok-s 60] [--seconds 10] [--size 80x24] [--json]`. A thread
stands for the engine and streams into every tab. Told is the thread's processor time over the clock while
the view is closed, open, and open but drawing nothing: the streams' own share. Then how long an engine's
thread takes for a close look at `--blocks` blocks of which eight sequences hold `--held` each. Bars: the
view takes ≤ 2 % of a core beside the streams, a look ≤ 100 us.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import threading
import time
from collections import deque
from types import SimpleNamespace
from unittest.mock import patch

from app.screens.engine_view.screen import EngineView
from app.settings.file import Settings
from app.settings.paths import HOME_VARIABLE
from app.window.app import ChatApp
from engine.api.detail import EngineDetail, TickRecord
from engine.cache.block_manager import BlockManager
from engine.cache.budget import KVBudget
from engine.core.figures.detail_collector import DetailCollector
from tests.app.driving import ready, say, wait_until
from tests.perf.ui_latency import WORDS, _share
from tests.support.fakes import STATS, FakeEngine, Streamer

ROUNDS = 3
LOOKS = 200


class Busy(FakeEngine):
    """Takes looks and logs ticks on a thread of its own, as an engine does."""

    def __init__(self, tick_ms: float = 12.0) -> None:
        super().__init__(context_length=1 << 20)
        self.num_blocks = 8193
        self._ms = tick_ms
        self._log: deque[TickRecord] = deque(maxlen=4096)
        self._latest: EngineDetail | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Busy":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def detail(self) -> EngineDetail | None:
        return self._latest

    def tick_log(self) -> list[TickRecord]:
        return list(self._log)

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            self._latest = super().detail()
            now, ms = time.perf_counter(), self._ms
            newest = self._log[-1].ended_at if self._log else now - 8.0
            while newest + ms / 1e3 <= now:
                newest += ms / 1e3
                self._log.append(TickRecord(newest, 8, 0, (), ms, ms, (), 2 * ms, 0))


async def share_of_a_core(tabs: int, tok_s: float, seconds: float, size: tuple[int, int]) -> dict[str, float]:
    engine = Busy()
    app = ChatApp(Settings(), engine_factory=lambda: engine)
    closed: list[float] = []
    opened: list[float] = []
    blind: list[float] = []
    async with app.run_test(size=size) as pilot:
        screen = await ready(pilot)
        for number in range(tabs):
            if number:
                await pilot.press("ctrl+t")
                await ready(pilot)
            await say(pilot, "Tell me a very long story about a fox.")
        await wait_until(pilot, lambda: len(engine.generations) == tabs)
        with engine, Streamer(engine, WORDS, tok_s, 1 << 30):
            for _ in range(ROUNDS):
                closed.append(await _share(seconds))
                await pilot.press("f12")
                await wait_until(pilot, lambda: isinstance(app.screen, EngineView))
                opened.append(await _share(seconds))
                with patch.object(EngineView, "_draw"):
                    blind.append(await _share(seconds))
                await pilot.press("escape")
                await wait_until(pilot, lambda: app.screen is screen)
    app.end_services()
    shares = {"closed": closed, "open": opened, "open, drawing nothing": blind}
    return {name: statistics.median(values) for name, values in shares.items()}


def look_us(blocks: int, held: int) -> dict[str, float]:
    """Microseconds of a look while eight sequences of `held` blocks grow: the first, and those after it."""
    manager = BlockManager(blocks + 1, 16, 1, KVBudget(blocks))
    times = SimpleNamespace(admitted_at=0.0, first_token_at=0.1, arrival=0.0, windows=[])
    costs = {"cached_tokens": 0, "saved_ms": 0.0, "preemptions": 0, "model": 1}
    tables = [manager.allocate(held) for _ in range(8)]
    sequences = [
        SimpleNamespace(**vars(times), **costs, sequence_id=number, block_table=table)
        for number, table in enumerate(tables)
    ]
    collector = DetailCollector([SimpleNamespace(key=1, name="m", blocks=manager)])  # type: ignore[arg-type]
    taken = []
    for _ in range(LOOKS):
        for table in tables:
            table += manager.allocate(1, table[-1])
        started = time.perf_counter()
        collector.take(STATS, sequences)  # type: ignore[arg-type]
        taken.append(1e6 * (time.perf_counter() - started))
    return {"first": taken[0], "median": statistics.median(taken[1:]), "least": min(taken[1:])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tabs", type=int, default=8)
    parser.add_argument("--tok-s", type=float, default=60)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--size", default="80x24")
    parser.add_argument("--blocks", type=int, default=100_000)
    parser.add_argument("--held", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    width, height = map(int, args.size.split("x"))
    with tempfile.TemporaryDirectory() as home:
        os.environ[HOME_VARIABLE] = home
        os.environ["TEXTUAL_ANIMATIONS"] = "none"
        shares = asyncio.run(share_of_a_core(args.tabs, args.tok_s, args.seconds, (width, height)))
    result = {"share_of_a_core": shares, "look_us": look_us(args.blocks, args.held)}
    if args.json:
        print(json.dumps(result, indent=2))
        return
    print("user interface: " + ", ".join(f"{name} {share:.1%}" for name, share in shares.items()))
    print("a look: " + ", ".join(f"{name} {value:.0f} us" for name, value in result["look_us"].items()))


if __name__ == "__main__":
    main()
