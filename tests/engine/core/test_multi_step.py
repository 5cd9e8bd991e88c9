"""Ticks launched ahead give what ticks one by one give, and keep the bookkeeping right."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api.request import FinishReason, Request
from engine.cache.block_manager import BlockManager
from engine.cache.budget import KVBudget
from engine.core.multi_step import MultiStep
from engine.runner.sampler import Sampled
from engine.scheduler.config import SchedulerConfig
from engine.scheduler.cost_model import CostModel
from engine.scheduler.plan import ModelBatch
from engine.scheduler.scheduler import Scheduler
from engine.scheduler.sequence import Sequence

BLOCK = 4
STOP = 7


def next_token(seed: int, position: int) -> int:
    """Any fixed function; about one in eleven is the stop token."""
    return (seed * 31 + position * position * 17) % 11


class FakeDevice:
    """Queues ticks as a device does: a row's next position is known to it alone."""

    block_size = BLOCK

    def __init__(self, max_ahead: int, fail_at: int | None = None) -> None:
        self.max_ahead = max_ahead
        self.queue: deque[Sampled] = deque()
        self.positions: dict[int, int] = {}
        self.ticks = 0
        self.fail_at = fail_at

    def begin(self, batch: ModelBatch) -> None:
        self.queue.clear()
        self.positions = {s.sequence_id: s.num_computed for s in batch.decode}

    def launch(self, batch: ModelBatch) -> None:
        ids = {}
        for sequence in batch.decode:
            position = self.positions[sequence.sequence_id]
            assert position < len(sequence.block_table) * BLOCK, "a tick writes past its blocks"
            assert position < sequence.limit
            ids[sequence.sequence_id] = next_token(sequence.seed, position)
            self.positions[sequence.sequence_id] = position + 1
        self.queue.append(Sampled(ids, {}))

    def collect(self) -> Sampled:
        self.ticks += 1
        if self.ticks == self.fail_at:
            raise RuntimeError("the device is gone")
        return self.queue.popleft()

    def run(self, batch: ModelBatch) -> Sampled:
        ids = {s.sequence_id: next_token(s.seed, s.num_computed) for s in batch.decode}
        for chunk in batch.prefill:
            if chunk.completes:
                ids[chunk.sequence.sequence_id] = next_token(chunk.sequence.seed, chunk.end - 1)
        return Sampled(ids, {})


class Simulation:
    """The engine loop's part: plan, run, commit, end what said its stop token or reached its limit."""

    def __init__(self, device: FakeDevice, blocks: int) -> None:
        self.scheduler = Scheduler(CostModel(), SchedulerConfig(debug=True))
        budget = KVBudget(blocks)
        self.blocks = BlockManager(blocks, BLOCK, 1, budget, b"")
        self.scheduler.add_model(1, self.blocks, 64)
        self.device = device
        self.ended: dict[int, Sequence] = {}
        self.longest = 0
        self.failures: list[Exception] = []

    def settle(self, plan, sampled, more=False) -> None:
        self.longest = max(self.longest, len(self.device.queue))
        for sequence in self.scheduler.commit(plan, sampled.ids, sampled.failed, 0.0, more=more):
            self.ended[sequence.sequence_id] = sequence
        for sequence_id, token in sampled.ids.items():
            sequence = self.scheduler.sequences.get(sequence_id)
            if sequence is None or sequence_id in self.ended:
                continue
            if token == STOP or sequence.at_limit:
                reason = FinishReason.STOP if token == STOP else FinishReason.LENGTH
                if self.scheduler.finish(sequence, reason):
                    self.ended[sequence_id] = sequence

    def recover(self, batch: ModelBatch, error: Exception) -> Sampled:
        self.failures.append(error)
        alive = [s for s in batch.decode if s.sequence_id not in self.ended and s.remaining]
        return self.device.run(ModelBatch(1, alive))

    def run_ahead(self, plan, batch, interrupted) -> None:
        def extend(in_flight):
            return not interrupted() and self.scheduler.extend(plan, in_flight)

        for step in MultiStep(batch, self.device, extend):
            sampled = step.sampled if step.error is None else self.recover(batch, step.error)
            self.settle(plan, sampled, step.in_flight > 0)

    def run(self, interrupted=lambda: False) -> None:
        while self.scheduler.sequences:
            plan = self.scheduler.plan(0.0)
            if self.device.max_ahead and plan.decode_only is not None:
                self.run_ahead(plan, plan.decode_only, interrupted)
            else:
                self.settle(plan, self.device.run(plan.batches[0]))
        assert not self.blocks.held


def simulate(requests: list[tuple[int, int]], ahead: int, blocks: int, **device) -> Simulation:
    simulation = Simulation(FakeDevice(ahead, **device), blocks)
    for index, (prompt, new) in enumerate(requests):
        request = Request(tuple(range(prompt)), max_tokens=new)
        simulation.scheduler.submit(Sequence(index + 1, 1, request, 0.0, seed=index))
    return simulation


REQUESTS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 30)), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(REQUESTS, st.integers(1, 9), st.integers(12, 60))
def test_ahead_gives_what_one_by_one_gives(requests, ahead, blocks):
    plain, early = simulate(requests, 0, blocks), simulate(requests, ahead, blocks)
    plain.run()
    early.run()
    for sequence_id, sequence in plain.ended.items():
        assert early.ended[sequence_id].token_ids == sequence.token_ids
        assert early.ended[sequence_id].finish_reason is sequence.finish_reason
    assert len(early.ended) == len(requests)


def test_the_queue_is_filled_but_no_further():
    simulation = simulate([(3, 30)], 5, 60)
    simulation.run()
    assert simulation.longest == 5


@settings(max_examples=30, deadline=None)
@given(REQUESTS, st.integers(1, 9), st.integers(1, 12))
def test_ticks_in_flight_are_dropped_when_one_fails_and_run_again(requests, ahead, fail_at):
    plain, failing = simulate(requests, 0, 60), simulate(requests, ahead, 60, fail_at=fail_at)
    plain.run()
    failing.run()
    assert len(failing.failures) == (failing.device.ticks >= fail_at)
    for sequence_id, sequence in plain.ended.items():
        assert failing.ended[sequence_id].token_ids == sequence.token_ids
        assert failing.ended[sequence_id].finish_reason is sequence.finish_reason


def test_an_interruption_stops_launching():
    simulation = simulate([(3, 30)], 5, 60)
    calls = iter(range(1000))
    simulation.run(interrupted=lambda: next(calls) % 3 == 2)
    assert simulation.longest <= 3
    assert len(simulation.ended) == 1


@pytest.mark.parametrize("ahead", [0, 4])
def test_a_surplus_tick_is_not_kept(ahead):
    simulation = simulate([(2, 1), (2, 12)], ahead, 60)
    simulation.run()
    assert len(simulation.ended[1].token_ids) == 3
