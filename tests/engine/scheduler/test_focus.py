"""Who comes first: the focused sequence, and nobody for ever."""

import pytest

from engine.api.request import Priority, Request
from engine.api.stats import SequenceState
from engine.scheduler.cost_model import Load
from engine.scheduler.prefill.chunked_prefill import order_readers, share_prefill
from engine.scheduler.sequence import Sequence
from tests.engine.scheduler.test_scheduler import Bench


def reader(sequence_id, length, read_at=0.0, priority=Priority.NORMAL):
    sequence = Sequence(sequence_id, 0, Request(tuple(range(length)), priority=priority), 0.0)
    sequence.read_at = read_at
    return sequence


def shares(readers, budget):
    chunks = share_prefill(readers, budget, lambda _sequence, _length: 1.0, 1)
    return {chunk.sequence.sequence_id: chunk.length for chunk in chunks}


def test_the_focused_prompt_is_read_alone_and_others_get_what_it_leaves():
    sequences = [reader(1, 100, 9.9), reader(2, 100, 9.9), reader(3, 30, 9.9)]
    assert shares(order_readers(sequences, 2, 10.0, 0.5), 60) == {2: 60}
    assert shares(order_readers(sequences, 3, 10.0, 0.5), 60) == {3: 30, 1: 15, 2: 15}


def test_who_was_not_read_for_long_gets_a_fair_share_beside_the_focused_one():
    sequences = [reader(1, 100, 9.9), reader(2, 100, 9.4), reader(3, 100, 0.0)]
    readers = order_readers(sequences, 3, 10.0, 0.5)
    assert [s.sequence_id for s in readers.sequences] == [2, 3, 1]
    assert shares(readers, 60) == {1: 20, 2: 20, 3: 20}


def test_no_background_prompt_starves_while_the_focused_one_is_read():
    bench = Bench(num_blocks=5000, context_length=10_000, min_prefill_tokens=1)
    for _ in range(20):
        for rows, tokens in ((1, 0), (1, 8), (1, 16)):
            bench.scheduler.cost.observe(0, Load(rows, 0, tokens), 10.0 + tokens)
    bench.submit(4)
    bench.tick()
    background = [bench.submit(2000) for _ in range(3)]
    focused = bench.submit(9000)
    bench.scheduler.focus(focused.sequence_id)
    now, last = 100.0, {}
    while now < 112.0:
        plan = bench.scheduler.plan(now)
        for chunk in plan.batches[0].prefill:
            sequence_id = chunk.sequence.sequence_id
            assert now - last.get(sequence_id, 100.0) < 2.0
            last[sequence_id] = now
        bench.commit(plan)
        now += 0.02
    assert all(now - last[sequence.sequence_id] < 2.0 for sequence in [*background, focused])
    assert focused.num_computed > 5 * max(sequence.num_computed for sequence in background) > 0


def test_the_focused_sequence_is_admitted_first_and_pauses_last():
    bench = Bench(num_blocks=10, min_stay_s=0.0)
    old, new = bench.submit(12, max_tokens=20), bench.submit(12, max_tokens=20)
    bench.scheduler.focus(new.sequence_id)
    while not old.preemptions + new.preemptions:
        bench.tick()
    assert (old.preemptions, new.preemptions) == (1, 0)
    assert "context memory is full" in old.note


def test_a_focused_request_gets_in_by_pausing_the_newest_that_has_settled():
    bench = Bench(num_blocks=10, min_stay_s=2.0)
    old, new = bench.submit(12), bench.submit(12)
    assert bench.scheduler.plan(50.0).batches
    bench.scheduler.commit(bench.scheduler._in_flight, {1: 7, 2: 7}, now=50.0)
    waiting = bench.submit(14)
    bench.scheduler.focus(waiting.sequence_id)
    plan = bench.scheduler.plan(51.0)
    assert waiting.state is SequenceState.QUEUED, "it pushed out one that has only just started"
    bench.commit(plan)
    bench.commit(bench.scheduler.plan(52.5))
    assert waiting.block_table
    assert (new.preemptions, old.preemptions) == (1, 0)


def test_priority_may_change_while_it_waits_and_while_it_runs():
    bench = Bench(num_blocks=500, max_prefill_tokens=60)
    first, second = bench.submit(400), bench.submit(400)
    bench.scheduler.set_priority(second.sequence_id, Priority.HIGH)
    assert list(bench.scheduler._queue.waiting) == [second, first]
    assert bench.lengths(bench.tick()) == {2: 40, 1: 20}
    bench.scheduler.set_priority(second.sequence_id, Priority.LOW)
    assert bench.scheduler._queue.running == [first, second]
    assert bench.lengths(bench.tick()) == {1: 40, 2: 20}


def test_a_paused_decode_row_keeps_its_blocks_and_goes_on_where_it_was():
    bench = Bench()
    row, other = bench.submit(10), bench.submit(10)
    bench.tick()
    table = list(row.block_table)
    bench.scheduler.pause(row.sequence_id)
    for _ in range(3):
        assert bench.tick().batches[0].decode == [other]
    assert (row.block_table, row.num_computed, row.state) == (table, 10, SequenceState.PAUSED)
    bench.scheduler.resume(row.sequence_id)
    assert bench.tick().batches[0].decode == [row, other]


def test_a_prompt_paused_half_way_is_read_on():
    bench = Bench(max_prefill_tokens=6)
    sequence = bench.submit(20)
    bench.tick()
    bench.scheduler.pause(sequence.sequence_id)
    assert bench.plan().empty
    bench.scheduler.resume(sequence.sequence_id)
    assert bench.lengths(bench.tick()) == {1: 6}
    assert sequence.num_computed == 12


@pytest.mark.parametrize("call", ["pause", "resume"])
def test_sequences_are_controlled_between_ticks_only(call):
    from engine.api.errors import InvariantError

    bench = Bench()
    bench.submit(10)
    bench.plan()
    with pytest.raises(InvariantError, match="between ticks"):
        getattr(bench.scheduler, call)(1)


def test_waiting_time_counts_those_before_it():
    bench = Bench(num_blocks=500, max_prefill_tokens=50)
    for tokens in (50, 100, 200) * 5:
        bench.scheduler.cost.observe(0, Load(0, 0, tokens), 0.0 + tokens)
    first, second = bench.submit(400), bench.submit(400)
    bench.tick()
    waits = bench.scheduler.wait_seconds()
    alone, behind = waits[first.sequence_id], waits[second.sequence_id]
    assert alone == pytest.approx((400 - first.num_computed) / 1e3, rel=0.3)
    assert behind == pytest.approx((800 - 50) / 1e3, rel=0.3)
    bench.scheduler.focus(second.sequence_id)
    assert bench.scheduler.wait_seconds()[second.sequence_id] == pytest.approx(0.4, rel=0.3)
    bench.scheduler.pause(first.sequence_id)
    assert first.sequence_id not in bench.scheduler.wait_seconds()


def test_who_was_resumed_waits_for_memory_until_the_first_of_those_that_decode_ends():
    bench = Bench(num_blocks=20)
    for tokens in (50, 100, 200) * 5:
        bench.scheduler.cost.observe(0, Load(0, 0, tokens), 10.0 + tokens)
    row, other = bench.submit(40, max_tokens=30), bench.submit(30, max_tokens=20)
    while not other.preemptions:
        bench.tick()
    for _ in range(2):
        bench.scheduler.pause(other.sequence_id)
        assert other.note == "paused on request"
        bench.scheduler.resume(other.sequence_id)
        assert other.note == ""
        read = bench.scheduler.wait_seconds()[other.sequence_id]
        bench.tick()
        assert "context memory is full" in other.note and not row.finished
        assert bench.scheduler.wait_seconds()[other.sequence_id] > read + 0.1
