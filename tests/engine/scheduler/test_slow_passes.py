"""Prompts of a model of which the processor computes a part are read in passes that follow its own times."""

from dataclasses import replace

import pytest

from engine.cache.block_manager import BlockManager
from engine.scheduler.config import SlowPasses
from engine.scheduler.cost_model import Load
from engine.scheduler.plan import ModelBatch
from engine.scheduler.prefill.slow_passes import ALONE_MS, FIRST_ALONE, SLICE_MS
from tests.engine.scheduler.test_scheduler import Bench

FAST, SLOW = 0, 1
PASS_MS, TOKEN_MS = 40.0, 5.0


def bench_of(learned: bool = True, **config) -> Bench:
    """Passes of the slow model take 40 ms and 5 more for each token that is read, others' next to nothing."""
    options = {
        "num_blocks": 5000,
        "models": (FAST,),
        "total_bytes": 10**6,
        "tick_extra_ms": 8.0,
        "context_length": 10_000,
    } | config
    bench = Bench(**options, max_prefill_tokens=4096)
    bench.blocks[SLOW] = BlockManager(5001, 4, 10, bench.budget)
    bench.scheduler.add_model(SLOW, bench.blocks[SLOW], 10_000, SlowPasses(512))
    cost = bench.scheduler.cost
    for _ in range(30):
        cost.observe(FAST, Load(1), 3.0)
        cost.observe(FAST, Load(0, 0, 200), 3.0 + 0.2)
        for tokens in (0, 4, 30, 100) if learned else ():
            cost.observe(SLOW, Load(1, 0, tokens), PASS_MS + TOKEN_MS * tokens)
    return bench


def decode(bench: Bench, model: int) -> int:
    """A sequence that answers."""
    sequence = bench.submit(4, model=model, max_tokens=500)
    while sequence.remaining > 1 or len(sequence.token_ids) <= 4:
        bench.tick()
    return sequence.sequence_id


def test_the_first_chunk_of_an_unknown_model_is_short():
    bench = bench_of(learned=False)
    slow = bench.submit(2000, model=SLOW)
    assert bench.lengths(bench.tick()) == {slow.sequence_id: FIRST_ALONE}
    bench = bench_of(learned=False)
    decode(bench, FAST)
    slow = bench.submit(2000, model=SLOW)
    assert bench.lengths(bench.tick()) == {slow.sequence_id: 4}


def test_alone_a_pass_is_bounded_in_milliseconds():
    bench = bench_of()
    slow = bench.submit(3000, model=SLOW)
    length = bench.lengths(bench.tick())[slow.sequence_id]
    assert PASS_MS + TOKEN_MS * length == pytest.approx(ALONE_MS, rel=0.15)


def test_beside_answers_of_others_a_pass_lasts_twice_its_shortest():
    bench = bench_of()
    decode(bench, FAST)
    slow = bench.submit(3000, model=SLOW)
    for _ in range(3):
        length = bench.lengths(bench.tick())[slow.sequence_id]
    assert PASS_MS + TOKEN_MS * length == pytest.approx(2 * PASS_MS, rel=0.2)


def test_beside_its_own_answers_the_same():
    bench = bench_of()
    decode(bench, SLOW)
    slow = bench.submit(3000, model=SLOW)
    for _ in range(3):
        length = bench.lengths(bench.tick())[slow.sequence_id]
    assert PASS_MS + TOKEN_MS * length == pytest.approx(2 * PASS_MS, rel=0.2)


def test_others_prompts_keep_their_budget():
    bench = bench_of()
    decode(bench, FAST)
    alone = bench.submit(5000, model=FAST)
    bench.submit(3000, model=SLOW)
    other = bench_of()
    decode(other, FAST)
    same = other.submit(5000, model=FAST)
    for _ in range(6):
        both, without = bench.lengths(bench.tick()), other.lengths(other.tick())
    assert both[alone.sequence_id] == pytest.approx(without[same.sequence_id], rel=0.05)
    assert both[alone.sequence_id] > 100


def test_no_pass_is_longer_than_its_memory_allows():
    bench = bench_of()
    bench.scheduler._prompts.slow.add(SLOW, SlowPasses(24))
    slow = bench.submit(3000, model=SLOW)
    assert bench.lengths(bench.tick()) == {slow.sequence_id: 24}


def tick_left(bench: Bench) -> ModelBatch:
    """A tick in which the slow model's chunks are left half-way; what it was given of them."""
    plan = bench.scheduler.plan(0.0)
    (slow,) = [batch for batch in plan.batches if batch.model == SLOW]
    given = replace(slow, prefill=list(slow.prefill))
    sampled = {one.sequence_id: 9 for batch in plan.batches for one in batch.decode}
    bench.scheduler.commit(plan, sampled, unfinished={SLOW})
    assert not slow.prefill
    return given


def test_a_long_chunk_is_left_for_answers_and_goes_on():
    bench = bench_of()
    bench.scheduler._prompts.slow.add(SLOW, SlowPasses(2048, long_from=64))
    fast = bench.scheduler.sequences[decode(bench, FAST)]
    slow, short = bench.submit(3000, model=SLOW), bench.submit(9, model=SLOW)
    first, written = tick_left(bench), len(fast.token_ids)
    assert first.slice_ms == SLICE_MS and sum(chunk.length for chunk in first.prefill) == 2048
    again = tick_left(bench)
    assert again.prefill == first.prefill and not slow.num_computed and not short.num_computed
    assert len(fast.token_ids) == written + 1
    assert bench.lengths(bench.tick())[slow.sequence_id] == first.prefill[0].length == slow.num_computed


def test_who_ends_takes_a_chunk_along_that_was_left():
    bench = bench_of()
    bench.scheduler._prompts.slow.add(SLOW, SlowPasses(2048, long_from=64))
    ends, stays = bench.submit(1000, model=SLOW), bench.submit(500, model=SLOW)
    assert tick_left(bench).slice_ms == ALONE_MS
    bench.scheduler.finish(ends)
    assert bench.lengths(bench.tick()) == {stays.sequence_id: 500}


def test_a_short_prompt_is_the_processors():
    bench = bench_of()
    bench.scheduler._prompts.slow.add(SLOW, SlowPasses(2048, long_from=640))
    decode(bench, FAST)
    slow = bench.submit(300, model=SLOW)
    for _ in range(3):
        length = bench.lengths(bench.tick())[slow.sequence_id]
    assert PASS_MS + TOKEN_MS * length == pytest.approx(2 * PASS_MS, rel=0.2)
