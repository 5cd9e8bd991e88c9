"""The log of ticks: what it keeps, and what an engine writes into it."""

import threading
import time

import pytest

from engine.api.request import Request, SamplingParams
from engine.core.figures.tick_log import TickLog
from engine.engine import Engine
from engine.runner.base import PassNotes
from engine.runner.eager_runner import EagerRunner
from engine.scheduler.plan import TickPlan
from tests.support.tiny_gguf import make_tiny


def test_the_last_ticks_are_kept_with_what_was_noted_of_them():
    log, notes = TickLog(kept=3), PassNotes()
    for number in range(5):
        log.expect(number)
        log.expect(0.5)
        notes.shape = (1, 0, number)
        if number == 3:
            notes.add("capture")
        log.add(TickPlan(), number / 1000, [notes])
    records = log.records()
    assert [record.predicted_ms for record in records] == [2.5, 3.5, 4.5]
    assert [record.measured_ms for record in records] == [2.0, 3.0, 4.0]
    assert [record.shapes for record in records] == [((1, 0, 2),), ((1, 0, 3),), ((1, 0, 4),)]
    assert [record.done for record in records] == [(), ("capture",), ()]
    assert sorted(record.ended_at for record in records) == [record.ended_at for record in records]


@pytest.fixture
def engine():
    with Engine("cpu", weight_dtype="float32", threads=1, debug=True, kv_budget_bytes=32 << 20) as engine:
        yield engine


@pytest.fixture
def model(engine, tmp_path):
    return engine.load(make_tiny(tmp_path / "one.gguf", "qwen3", quant="Q8_0", seed=1))


def test_an_engine_logs_every_tick(engine, model):
    started = time.perf_counter()
    model.submit(Request(tuple(range(20, 60)), SamplingParams(temperature=0.0), max_tokens=5)).result(60)
    records = engine.tick_log()
    ended = time.perf_counter()
    while engine.stats().ticks < len(records):
        # Statistics are taken a moment after the last answer.
        time.sleep(0.001)
    assert len(records) == engine.stats().ticks
    assert engine.stats().rows or not engine.stats().tick_limit_ms, "a limit is shown while nobody decodes"
    assert sum(record.chunk_tokens for record in records) == 40
    assert [record.rows for record in records].count(1) == len(records) - 1
    assert all(started < record.ended_at < ended and record.measured_ms > 0 for record in records)
    assert all(record.predicted_ms > 0 or "first run" in record.done for record in records)


def test_idle_work_is_done_in_pieces_and_delays_a_command_by_one_at_most(engine, model, monkeypatch):
    pieces, go, inside = [], threading.Event(), threading.Event()

    def work(runner: EagerRunner) -> bool:
        pieces.append(threading.current_thread().name)
        inside.set()
        assert go.wait(60)
        return len(pieces) < 6

    monkeypatch.setattr(EagerRunner, "idle_work", work)
    call = engine._loop.call
    call(lambda: None)
    assert inside.wait(60)
    ran = []
    caller = threading.Thread(target=lambda: ran.append(call(lambda: len(pieces))))
    caller.start()
    while engine._loop._inbox.empty():
        pass
    go.set()
    caller.join(60)
    assert ran == [1], "the command waited for one piece that had begun"
    while len(pieces) < 6:
        time.sleep(0.001)
    time.sleep(0.1)
    assert pieces == ["engine"] * 6, "it ends where nothing is left"
