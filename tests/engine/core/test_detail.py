"""The close look at the engine: it says what block managers say, and comes when it is asked for."""

import threading
import time
from collections import Counter
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest

from engine.api.request import Request, SamplingParams
from engine.core.figures.detail_collector import DetailCollector
from engine.engine import Engine
from tests.support.block_fuzz import BlockFuzzer
from tests.support.fakes import STATS
from tests.support.tiny_gguf import make_tiny


def models_of(fuzzer):
    return [SimpleNamespace(key=key, name=f"m{key}", blocks=m) for key, m in enumerate(fuzzer.managers)]


def sequence_of(row):
    times = SimpleNamespace(admitted_at=None, first_token_at=None, arrival=0.0)
    costs = {"cached_tokens": 0, "saved_ms": 0.0, "preemptions": 0}
    names = {"sequence_id": id(row), "model": row.manager, "block_table": row.table, "windows": row.windows}
    return SimpleNamespace(**vars(times), **costs, **names)


def numbers(holding):
    return np.frombuffer(holding.blocks, np.int32).tolist()


def check(fuzzer, detail):
    pools = iter(detail.pools)
    for key, manager in enumerate(fuzzer.managers):
        rows = {id(row): row for row in fuzzer.rows if row.manager == key and row.table}
        pool = next(pools)
        free = set(manager._runs)
        assert [block for block, used in enumerate(pool.used) if not used] == sorted({0, *free})
        assert {h.sequence_id: numbers(h) for h in pool.holdings} == {n: r.table for n, r in rows.items()}
        named = Counter(block for holding in pool.holdings for block in numbers(holding))
        assert all(named[block] == manager.refs(block) for block in range(1, manager.total + 1))
        for number, kind in enumerate(manager.windows.kinds):
            pages = next(pools)
            held = {page for holding in pages.holdings for page in numbers(holding)}
            assert len(held) == kind.live and sum(pages.used) == kind.used
            assert all(pages.used[page] for page in held) and pages.window == kind.shape.tokens
            for holding in pages.holdings:
                window = rows[holding.sequence_id].windows[number]
                assert numbers(holding) == window.pages[window.first :]
    assert next(pools, None) is None


@pytest.mark.parametrize("seed", range(4))
def test_it_says_of_every_block_what_its_manager_says(seed):
    fuzzer = BlockFuzzer(Random(seed))
    collector = DetailCollector(models_of(fuzzer))
    for step in range(600):
        fuzzer.step()
        if step % 3 == 0:
            collector.take(STATS, [sequence_of(row) for row in fuzzer.rows])
            check(fuzzer, collector.latest)
    assert fuzzer.hits and fuzzer.refusals


@pytest.fixture
def engine():
    with Engine("cpu", weight_dtype="float32", threads=1, debug=True, kv_budget_bytes=32 << 20) as engine:
        yield engine


@pytest.fixture
def model(engine, tmp_path):
    return engine.load(make_tiny(tmp_path / "one.gguf", "qwen3", quant="Q8_0", seed=1))


@pytest.fixture
def taken(engine, monkeypatch):
    """Released once a look has been taken."""
    done, take = threading.Semaphore(0), DetailCollector.take

    def and_tell(self, *args):
        take(self, *args)
        done.release()

    monkeypatch.setattr(DetailCollector, "take", and_tell)
    return done


def test_an_idle_engine_takes_one_look_when_it_is_asked(engine, model, taken):
    assert engine.detail() is None
    assert taken.acquire(timeout=60)
    while engine.detail() is None or engine.detail().stats is not engine.stats():
        time.sleep(0.001)
    detail = engine.detail()
    assert [pool.model for pool in detail.pools] == [model.name] and not any(detail.pools[0].used)
    while taken.acquire(blocking=False):
        continue
    assert engine.detail() is detail and not taken.acquire(blocking=False), "nothing has changed"


def test_nothing_is_taken_while_nobody_asks(engine, model, taken):
    model.submit(Request(tuple(range(20, 60)), SamplingParams(temperature=0.0), max_tokens=5)).result(60)
    assert not taken.acquire(blocking=False)


def test_it_says_who_holds_what_and_what_it_has_cost(engine, model, taken):
    request = Request(tuple(range(20, 90)), SamplingParams(temperature=0.0), max_tokens=400, ignore_eog=True)
    running = model.submit(request)
    while not (engine.detail() and engine.detail().sequences and engine.detail().sequences[0].ttft_ms):
        assert running.finished is None
        time.sleep(0.001)
    detail = engine.detail()
    [cost], [holding] = detail.sequences, detail.pools[0].holdings
    assert cost.sequence_id == holding.sequence_id == running.sequence_id
    assert 0 <= cost.queue_ms <= cost.ttft_ms and cost.preemptions == cost.cached_tokens == 0
    assert all(detail.pools[0].used[block] for block in numbers(holding))
    running.cancel()


def test_an_answer_says_what_was_known_already_and_what_that_saved(engine, model):
    request = Request(tuple(range(20, 120)), SamplingParams(temperature=0.0), max_tokens=2)
    first, again = (model.submit(request).result(60)[1] for _ in range(2))
    assert (first.cached_tokens, first.saved_ms) == (0, 0.0)
    assert again.cached_tokens == 96 and again.saved_ms > 0
