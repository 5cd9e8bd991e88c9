from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from engine.api.errors import InvariantError, RequestError
from engine.api.request import FinishReason, Priority, Request
from engine.api.stats import SequenceState
from engine.cache.block_manager import BlockManager
from engine.cache.budget import KVBudget
from engine.scheduler.config import SchedulerConfig
from engine.scheduler.cost_model import CostModel, Load
from engine.scheduler.scheduler import Scheduler
from engine.scheduler.sequence import Sequence
from tests.support.scheduler_fuzz import SchedulerFuzzer

SIZE = 4


class Bench:
    """A scheduler with models of `num_blocks` blocks each and a step that samples token 7."""

    def __init__(self, num_blocks=100, models=(0,), context_length=1000, total_bytes=None, **config):
        self.budget = KVBudget(total_bytes or num_blocks * 10)
        self.scheduler = Scheduler(CostModel(), SchedulerConfig(**{"debug": True} | config))
        self.blocks = {}
        for key in models:
            self.blocks[key] = BlockManager(num_blocks + 1, SIZE, 10, self.budget)
            self.scheduler.add_model(key, self.blocks[key], context_length)
        self.count = 0

    def submit(self, prompt, model=0, **options):
        self.count += 1
        ids = (
            tuple(range(1000 * self.count, 1000 * self.count + prompt)) if isinstance(prompt, int) else prompt
        )
        request = Request(tuple(ids), **options)
        sequence = Sequence(self.count, model, request, float(self.count))
        self.scheduler.submit(sequence)
        return sequence

    def cancel(self, sequence_id):
        sequence = self.scheduler.sequences.get(sequence_id)
        return sequence is not None and self.scheduler.finish(sequence, FinishReason.CANCELLED)

    def plan(self):
        return self.scheduler.plan(99.0)

    def commit(self, plan, failed=None):
        sampled = {s.sequence_id: 7 for b in plan.batches for s in b.decode}
        sampled |= {c.sequence.sequence_id: 7 for b in plan.batches for c in b.prefill if c.completes}
        for sequence_id in failed or {}:
            sampled.pop(sequence_id, None)
        return self.scheduler.commit(plan, sampled, failed or {}, 99.0)

    def tick(self):
        plan = self.plan()
        self.commit(plan)
        return plan

    def lengths(self, plan):
        return {c.sequence.sequence_id: c.length for b in plan.batches for c in b.prefill}


def test_prompt_then_decode():
    bench = Bench(max_prefill_tokens=6)
    sequence = bench.submit(10)
    assert bench.scheduler.queue_position(sequence) == 1
    plan = bench.plan()
    assert (sequence.state, bench.lengths(plan)) == (SequenceState.PREFILL, {1: 6})
    assert bench.commit(plan) == []
    assert (sequence.num_computed, sequence.admitted_at, sequence.first_token_at) == (6, 99.0, None)
    assert bench.lengths(bench.tick()) == {1: 4}
    assert (sequence.token_ids[-1], sequence.remaining, sequence.first_token_at) == (7, 1, 99.0)
    plan = bench.tick()
    assert plan.batches[0].decode == [sequence]
    assert plan.batches[0].sequences == [sequence]
    assert bench.scheduler.finish(sequence)
    assert not bench.scheduler.finish(sequence)
    assert bench.plan().empty
    assert (sequence.finish_reason, bench.blocks[0].held) == (FinishReason.STOP, 0)


def test_new_request_joins_at_the_next_tick():
    bench = Bench()
    bench.submit(10)
    bench.tick()
    bench.submit(10)
    plan = bench.tick()
    assert [s.sequence_id for s in plan.batches[0].sequences] == [1, 2]


def test_no_decoding_row_reads_large_chunks():
    bench = Bench(num_blocks=500, max_prefill_tokens=300)
    bench.submit(900)
    assert bench.lengths(bench.tick()) == {1: 300}


def test_prefill_beside_decode_is_bounded_in_milliseconds():
    bench = Bench(num_blocks=500)
    for _ in range(20):
        for rows, tokens in ((1, 0), (1, 50), (4, 100), (0, 200)):
            bench.scheduler.cost.observe(0, Load(rows, 0, tokens), 10.0 + rows + 0.1 * tokens)
    bench.submit(10)
    bench.tick()
    bench.submit(900)
    tokens = (bench.scheduler.config.tick_factor - 1.0) * 11.0 / 0.1
    assert bench.lengths(bench.tick())[2] == pytest.approx(tokens, rel=0.15)


def test_a_floor_of_tokens_is_always_read():
    bench = Bench(min_prefill_tokens=16, tick_factor=1.0)
    bench.submit(10)
    bench.tick()
    bench.submit(100)
    assert bench.lengths(bench.tick()) == {2: 16}


def test_fair_shares_let_a_short_prompt_finish_first_and_leave_the_rest_to_the_oldest():
    bench = Bench(num_blocks=500, max_prefill_tokens=90)
    long, _, short = bench.submit(400), bench.submit(400), bench.submit(10)
    assert bench.lengths(bench.tick()) == {1: 50, 2: 30, 3: 10}
    assert short.state is SequenceState.DECODE
    assert long.state is SequenceState.PREFILL


def test_priority_weighs_shares_and_orders_the_queue():
    bench = Bench(num_blocks=500, max_prefill_tokens=70)
    bench.submit(400, priority=Priority.LOW)
    bench.submit(400)
    bench.submit(400, priority=Priority.HIGH)
    assert [s.sequence_id for s in list(bench.scheduler._queue.waiting)] == [3, 2, 1]
    assert bench.lengths(bench.tick()) == {3: 40, 2: 20, 1: 10}


def test_a_low_priority_is_overtaken_for_a_while_only():
    bench = Bench(head_start_s=10.0)
    low = bench.submit(5, priority=Priority.LOW)
    late = Sequence(50, 0, Request((1,), priority=Priority.HIGH), low.arrival + 21.0)
    bench.scheduler.submit(late)
    assert list(bench.scheduler._queue.waiting) == [low, late]


def test_one_budget_serves_prompts_of_several_models():
    bench = Bench(num_blocks=500, models=(0, 1), max_prefill_tokens=100, total_bytes=10_000)
    bench.submit(400, model=0)
    bench.submit(400, model=1)
    plan = bench.tick()
    assert [batch.model for batch in plan.batches] == [0, 1]
    assert bench.lengths(plan) == {1: 50, 2: 50}


def test_prefix_hit_between_turns_includes_generated_tokens():
    bench = Bench()
    first = bench.submit(10)
    for _ in range(7):
        bench.tick()
    ids = list(first.token_ids)
    bench.scheduler.finish(first)
    second = bench.submit([*ids, 1, 2, 3])
    bench.tick()
    assert len(ids) == 17
    assert second.cached_tokens == 16
    assert second.num_computed == 20


def test_a_fork_of_a_living_sequence_shares_its_full_blocks():
    bench = Bench()
    parent = bench.submit(10)
    bench.tick()
    child = bench.submit([*parent.token_ids[:10], 3])
    plan = bench.tick()
    assert child.block_table[:2] == parent.block_table[:2]
    assert child.block_table[2] != parent.block_table[2]
    assert (child.cached_tokens, bench.lengths(plan)) == (8, {2: 3})


def test_check_fits_says_numbers():
    bench = Bench(num_blocks=10, context_length=30)
    with pytest.raises(RequestError, match=r"25 prompt tokens and 6 new ones need 31.*context length is 30"):
        bench.submit(25, max_tokens=6)
    with pytest.raises(RequestError, match="30 prompt tokens"):
        bench.submit(30)
    bench = Bench(num_blocks=5, context_length=30)
    with pytest.raises(RequestError, match="need 21, but the KV memory holds 20"):
        bench.submit(20)
    with pytest.raises(RequestError, match="not loaded"):
        bench.submit(3, model=5)
    request = Request(tuple(range(8)))
    assert bench.scheduler.model(0).limit_of(request) == 20
    assert bench.scheduler.model(0).limit_of(Request((1, 2), max_tokens=3)) == 5


def test_the_queue_is_bounded():
    bench = Bench(max_queue=2)
    bench.submit(5)
    bench.submit(5)
    with pytest.raises(RequestError, match="2 requests wait already"):
        bench.submit(5)


def test_a_sequence_alone_runs_to_its_limit():
    bench = Bench(num_blocks=5)
    sequence = bench.submit(3)
    while not sequence.at_limit:
        bench.tick()
    assert sequence.num_target == 20
    assert bench.scheduler.preemptions == 0
    with pytest.raises(InvariantError, match="not ended at its limit"):
        bench.plan()


def test_full_kv_pauses_the_newest_and_all_finish():
    bench = Bench(num_blocks=10)
    old, new = bench.submit(12, max_tokens=20), bench.submit(12, max_tokens=20)
    while not new.preemptions:
        bench.tick()
    assert new.state is SequenceState.PAUSED
    assert new.note
    assert bench.scheduler.queue_position(new) == 1
    third = bench.submit(4, max_tokens=2)
    generated = list(new.token_ids)
    while not old.at_limit:
        bench.tick()
        assert third.state is SequenceState.QUEUED, "a later request overtook the paused one"
    bench.scheduler.finish(old, FinishReason.LENGTH)
    while not new.at_limit:
        bench.tick()
        if third.at_limit and not third.finished:
            bench.scheduler.finish(third, FinishReason.LENGTH)
    assert new.token_ids[: len(generated)] == generated
    assert (new.num_target, new.preemptions, bench.scheduler.preemptions) == (32, 1, 1)


def test_another_models_newest_sequence_makes_room_in_the_shared_budget():
    bench = Bench(num_blocks=10, models=(0, 1), total_bytes=100)
    old, new = bench.submit(12, model=0), bench.submit(12, model=1)
    while not new.preemptions:
        bench.tick()
    assert (old.preemptions, old.state) == (0, SequenceState.DECODE)


def test_a_model_out_of_block_numbers_leaves_other_models_alone():
    bench = Bench(num_blocks=10, models=(0, 1), total_bytes=1000)
    bench.submit(12, model=0)
    newer = bench.submit(12, model=0)
    newest = bench.submit(12, model=1)
    while not newer.preemptions:
        bench.tick()
    assert newest.preemptions == 0


def test_a_request_waits_until_those_that_run_have_room_to_grow():
    bench = Bench(num_blocks=10)
    bench.submit(11)
    bench.tick()
    second = bench.submit(28)
    bench.tick()
    assert second.state is SequenceState.QUEUED


def test_requests_wait_while_kv_is_full():
    bench = Bench(num_blocks=10)
    bench.submit(28)
    bench.tick()
    waiting = bench.submit(20)
    bench.tick()
    assert waiting.state is SequenceState.QUEUED
    assert "waits for context memory" in waiting.note
    bench.cancel(1)
    bench.tick()
    assert waiting.state is SequenceState.DECODE


@pytest.mark.parametrize("decoding", [False, True])
def test_cancel_in_flight_ends_in_commit(decoding):
    bench = Bench(max_prefill_tokens=8)
    sequence = bench.submit(8 if decoding else 20)
    if decoding:
        bench.tick()
    plan = bench.plan()
    held, known = bench.blocks[0].held, sequence.num_target
    assert not bench.cancel(1)
    assert not bench.cancel(1)
    assert not bench.scheduler.finish(sequence)
    assert bench.blocks[0].held == held
    assert bench.commit(plan) == [sequence]
    assert (sequence.finish_reason, sequence.num_target) == (FinishReason.CANCELLED, known)
    assert bench.blocks[0].held == 0
    assert not bench.cancel(1)


def test_cancel_while_queued_ends_at_once():
    bench = Bench(max_sequences=1)
    bench.submit(8)
    queued = bench.submit(8)
    plan = bench.plan()
    assert bench.cancel(2)
    assert queued.finished
    assert bench.commit(plan) == []


def test_a_failed_sequence_ends_alone_and_its_blocks_are_forgotten():
    bench = Bench()
    victim, other = bench.submit(9), bench.submit(9)
    plan = bench.plan()
    assert bench.commit(plan, failed={1: "NaN logits"}) == [victim]
    assert (victim.finish_reason, victim.error) == (FinishReason.ERROR, "NaN logits")
    assert other.state is SequenceState.DECODE
    again = bench.submit(list(victim.request.prompt_ids))
    bench.tick()
    assert again.cached_tokens == 0


def test_blocks_filled_before_a_failure_are_forgotten_too():
    bench = Bench()
    victim = bench.submit(9)
    bench.tick()
    bench.commit(bench.plan(), failed={1: "NaN logits"})
    again = bench.submit(list(victim.request.prompt_ids))
    bench.tick()
    assert again.cached_tokens == 0


def test_a_failing_step_ends_its_sequences_and_the_next_request_runs():
    bench = Bench()
    pair = [bench.submit(9), bench.submit(9)]
    assert bench.commit(bench.plan(), failed={1: "out of memory", 2: "out of memory"}) == pair
    third = bench.submit(9)
    bench.tick()
    assert third.state is SequenceState.DECODE


def test_a_missing_token_ends_its_sequence():
    bench = Bench()
    sequence = bench.submit(9)
    assert bench.scheduler.commit(bench.plan(), {}) == [sequence]
    assert sequence.finish_reason is FinishReason.ERROR
    assert "no token" in sequence.error


def test_plan_and_commit_alternate():
    bench = Bench()
    bench.submit(9)
    plan = bench.plan()
    with pytest.raises(InvariantError, match="in flight"):
        bench.plan()
    with pytest.raises(InvariantError, match="cannot be removed"):
        bench.scheduler.remove_model(0)
    bench.commit(plan)
    with pytest.raises(InvariantError, match="in flight"):
        bench.commit(plan)


def test_removing_a_model_ends_its_sequences_and_frees_its_memory():
    bench = Bench(models=(0, 1), total_bytes=2000)
    gone, stays, queued = bench.submit(9, model=0), bench.submit(9, model=1), bench.submit(9, model=0)
    bench.tick()
    assert bench.scheduler.remove_model(0) == [gone, queued]
    assert gone.error == "the model was unloaded"
    assert bench.budget.used_bytes == bench.blocks[1].held * 10
    bench.tick()
    assert not stays.finished


@pytest.mark.parametrize("seed", range(100))
def test_random_workloads(seed):
    SchedulerFuzzer(Random(seed), faults=seed % 2 == 0).run()


def test_random_workloads_put_models_aside_and_shrink_the_budget_below_what_answers_need():
    fuzzers = [SchedulerFuzzer(Random(seed)) for seed in range(16)]
    for fuzzer in fuzzers:
        fuzzer.moving, fuzzer.controlling = 0.3, 0.3
        fuzzer.run()
    assert all(sum(getattr(one, what) for one in fuzzers) > 10 for what in ("asides", "shrunk"))


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(random=st.randoms(use_true_random=False))
    def begin(self, random):
        self.fuzzer = SchedulerFuzzer(random, requests=8)

    @precondition(lambda self: self.fuzzer.left)
    @rule()
    def submit(self):
        self.fuzzer.submit()

    @rule()
    def cancel(self):
        self.fuzzer.maybe_cancel(1.0)

    @rule()
    def move_budget(self):
        self.fuzzer.move_budget()

    @rule(ticks=st.integers(1, 9))
    def tick(self, ticks):
        for _ in range(ticks):
            self.fuzzer.step()

    def teardown(self):
        if hasattr(self, "fuzzer"):
            self.fuzzer.random = Random(0)
            self.fuzzer.run()


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
