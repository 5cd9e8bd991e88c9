"""The KV budget moves while sequences wait, are read, decode, or are paused: their limits follow it."""

import pytest

from engine.api.errors import RequestError
from engine.api.options import Offload
from engine.api.request import FinishReason
from engine.api.stats import SequenceState
from tests.engine.scheduler.test_scheduler import SIZE, Bench

BLOCK = 10


def move(bench: Bench, blocks: int):
    """Give KV so many blocks, and end whom that leaves no room, as the engine does."""
    bench.budget.set_total(blocks * BLOCK)
    overgrown = bench.scheduler.fit_budget()
    for sequence in overgrown:
        assert bench.scheduler.finish(sequence, FinishReason.LENGTH)
    return overgrown


def run_out(bench: Bench, *sequences) -> None:
    """Tick until all have ended, each at its limit."""
    for _ in range(1000):
        for sequence in sequences:
            if sequence.at_limit and not sequence.finished:
                bench.scheduler.finish(sequence, FinishReason.LENGTH)
        if all(sequence.finished for sequence in sequences):
            return
        bench.tick()
        assert bench.budget.used_bytes <= bench.budget.total_bytes
    raise AssertionError("somebody waits for ever")


def test_what_waits_and_outgrew_the_budget_ends_and_what_fits_goes_on():
    bench = Bench(num_blocks=40, max_sequences=1)
    runs, large, small = bench.submit(9, max_tokens=3), bench.submit(100), bench.submit(9, max_tokens=5)
    bench.tick()
    assert move(bench, 10) == [large]
    assert (large.finish_reason, large.num_generated) == (FinishReason.LENGTH, 0)
    run_out(bench, runs, small)
    assert (runs.num_generated, small.num_generated) == (3, 5)


def test_a_prompt_that_is_read_and_outgrew_the_budget_ends():
    bench = Bench(num_blocks=40, max_prefill_tokens=8)
    reading, other = bench.submit(100), bench.submit(9, max_tokens=5)
    bench.tick()
    assert reading.state is SequenceState.PREFILL
    assert move(bench, 10) == [reading]
    run_out(bench, other)
    assert other.num_generated == 5


def test_an_answer_that_outgrew_the_budget_alone_keeps_its_tokens():
    bench = Bench(num_blocks=40)
    alone = bench.submit(30)
    for _ in range(30):
        bench.tick()
    tokens = list(alone.token_ids)
    assert move(bench, 10) == [alone]
    assert (alone.finish_reason, alone.token_ids) == (FinishReason.LENGTH, tokens)
    assert bench.budget.used_bytes <= bench.budget.total_bytes


def test_an_answer_that_still_fits_ends_at_the_new_limit():
    bench = Bench(num_blocks=40)
    alone = bench.submit(30)
    bench.tick()
    assert alone.limit == 160
    assert move(bench, 10) == []
    assert alone.limit == 40
    run_out(bench, alone)
    assert (alone.num_target, bench.scheduler.preemptions) == (40, 0)


def test_limits_rise_with_the_budget_up_to_what_was_asked_for():
    bench = Bench(num_blocks=40, context_length=100)
    bench.budget.set_total(10 * BLOCK)
    unlimited, asked = bench.submit(8), bench.submit(8, max_tokens=30)
    assert (unlimited.limit, asked.limit) == (40, 38)
    move(bench, 5)
    assert (unlimited.limit, asked.limit) == (20, 20)
    move(bench, 40)
    assert (unlimited.limit, asked.limit) == (100, 38)
    run_out(bench, unlimited, asked)
    assert (unlimited.num_target, asked.num_target) == (100, 38)


def test_rows_beyond_the_budget_make_room_newest_first_and_come_back():
    bench = Bench(num_blocks=40, max_prefill_tokens=100)
    rows = [bench.submit(20, max_tokens=20) for _ in range(4)]
    bench.tick()
    assert sum(len(row.block_table) for row in rows) == 20
    assert move(bench, 12) == []
    bench.tick()
    assert [bool(row.block_table) for row in rows] == [True, True, False, False]
    run_out(bench, *rows)
    assert all(row.num_generated == 20 for row in rows)


def test_a_table_that_was_grown_ahead_does_not_keep_its_sequence_from_going_on():
    """Blocks for drafts and ticks in flight reach beyond a limit that has fallen."""
    bench = Bench(num_blocks=40)
    alone = bench.submit(35)
    bench.tick()
    plan = bench.plan()
    assert bench.scheduler.make_room(alone, 20) == 20
    bench.commit(plan)
    assert len(alone.block_table) * SIZE > 40 > alone.num_target
    assert move(bench, 10) == []
    run_out(bench, alone)
    assert (alone.num_target, alone.preemptions) == (40, 1)


def test_a_paused_answer_that_outgrew_the_budget_ends_and_unblocks_those_behind_it():
    bench = Bench(num_blocks=20)
    old, paused = bench.submit(30, max_tokens=20), bench.submit(40, max_tokens=20)
    while not paused.preemptions:
        bench.tick()
    behind = bench.submit(9, max_tokens=5)
    assert move(bench, 10) == ([old, paused] if old.num_target >= 40 else [paused])
    assert paused.num_generated > 0
    run_out(bench, old, behind)
    assert behind.num_generated == 5


@pytest.mark.parametrize("user_paused", [False, True])
def test_an_answer_whose_context_is_in_host_memory_ends_or_comes_back(user_paused):
    bench = Bench(num_blocks=20, offload=Offload.ALWAYS)
    bench.blocks[0].host.grow(100)
    old, away = bench.submit(30, max_tokens=20), bench.submit(32, max_tokens=20)
    while not away.preemptions:
        bench.tick()
    while not bench.blocks[0].host.used:
        bench.tick()
    if user_paused:
        bench.scheduler.pause(2)
    assert move(bench, 13) == []
    assert away.limit == 52
    assert move(bench, 6) == [old, away]
    assert not bench.scheduler.sequences and bench.budget.used_bytes == bench.blocks[0].cached * BLOCK


def test_blocks_given_back_go_to_host_memory():
    bench = Bench(num_blocks=20, offload=Offload.ALWAYS)
    bench.blocks[0].host.grow(100)
    old, new = bench.submit(30, max_tokens=9), bench.submit(32, max_tokens=5)
    bench.tick()
    move(bench, 11)
    plan = bench.tick()
    assert not new.block_table and len(plan.moves[0].offloads) >= 5
    run_out(bench, old, new)
    assert new.cached_tokens == 0 and new.num_generated == 5


def test_what_is_paused_on_request_gives_back_first():
    bench = Bench(num_blocks=20)
    held, runs = bench.submit(30, max_tokens=9), bench.submit(30, max_tokens=9)
    bench.tick()
    bench.scheduler.pause(1)
    move(bench, 10)
    bench.tick()
    assert not held.block_table and runs.block_table
    bench.scheduler.resume(1)
    run_out(bench, held, runs)


def test_forks_share_their_beginning_through_a_budget_that_moves():
    bench = Bench(num_blocks=40, max_prefill_tokens=100)
    parent = bench.submit(40, max_tokens=12)
    bench.tick()
    forks = [bench.submit([*parent.token_ids[:40], i], max_tokens=11) for i in range(3)]
    bench.tick()
    assert all(fork.block_table[:10] == parent.block_table[:10] for fork in forks)
    assert move(bench, 14) == []
    run_out(bench, parent, *forks)
    assert all(fork.num_generated == 11 for fork in forks)


def test_the_other_models_sequences_go_on():
    """What a model's own blocks take decides how many of its tokens fit."""
    bench = Bench(num_blocks=40, models=(0, 1), total_bytes=800)
    bench.blocks[1].block_bytes = 20
    thin, thick = bench.submit(50, model=0), bench.submit(50, model=1, max_tokens=60)
    other = bench.submit(9, model=1, max_tokens=8)
    for _ in range(5):
        bench.tick()
    assert move(bench, 20) == [thick]
    assert (thin.limit, other.limit) == (80, 17)
    run_out(bench, thin, other)
    assert (thin.num_target, other.num_generated) == (80, 8)


def test_a_budget_that_holds_nothing_ends_everybody_and_refuses_with_numbers():
    bench = Bench(num_blocks=20)
    pair = [bench.submit(9), bench.submit(9)]
    bench.tick()
    assert move(bench, 0) == pair
    with pytest.raises(RequestError, match="the KV memory holds 0"):
        bench.submit(9)
    move(bench, 20)
    run_out(bench, bench.submit(9, max_tokens=3))


def test_what_was_accepted_is_queued_again_after_a_failure_whatever_the_budget_and_the_queue():
    old = Bench(num_blocks=40, max_queue=2)
    running, waiting = old.submit(30, max_tokens=100), old.submit(100)
    old.tick()
    bench = Bench(num_blocks=10, max_queue=1)
    for sequence in (running, waiting):
        sequence.block_table, sequence.num_computed = [], 0
        sequence.preemptions += 1
        bench.scheduler.submit(sequence)
    assert bench.scheduler.fit_budget() == [waiting]
    assert (running.limit, waiting.limit) == (40, 40)
    with pytest.raises(RequestError, match="2 requests wait"):
        bench.submit(5)
    bench.scheduler.finish(waiting, FinishReason.LENGTH)
    run_out(bench, running)
