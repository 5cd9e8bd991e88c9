"""Drafts on a device that queues ticks: when the queue ends for them, what that gains and costs."""

import random
from collections import deque

import pytest

from engine.api.request import Request
from engine.cache.block_manager import BlockManager
from engine.cache.budget import KVBudget
from engine.core.multi_step import MultiStep
from engine.runner.sampler import Sampled
from engine.scheduler.buckets import DECODE_ROWS, VERIFY_TOKENS, round_up
from engine.scheduler.config import SchedulerConfig
from engine.scheduler.cost_model import CostModel
from engine.scheduler.plan import ModelBatch, TickPlan
from engine.scheduler.scheduler import Scheduler
from engine.scheduler.sequence import Sequence
from engine.speculation.speculator import Speculator

TICK_MS = 2.65
TOKEN_MS = 0.06
VERIFY_MS = 0.2
"""What a pass with drafts takes beyond its tokens."""
GAP_MS = 0.3
"""From the end of a tick that was not queued ahead to the next one's start."""


class Device:
    """Rows whose texts are known beforehand, and a clock."""

    max_ahead = 5
    verify_rows = 16

    def __init__(self, texts: dict[int, list[int]]) -> None:
        self.texts = texts
        self.now = self.free_at = 0.0
        self.queue: deque[tuple[float, dict[int, int]]] = deque()
        self.positions: dict[int, int] = {}

    def can_verify(self, sequence: Sequence) -> bool:
        return True

    def begin(self, batch: ModelBatch) -> None:
        self.positions = {row.sequence_id: row.num_target for row in batch.decode}

    def launch(self, batch: ModelBatch) -> None:
        ids = {row: self.texts[row][position] for row, position in self.positions.items()}
        self.positions = {row: position + 1 for row, position in self.positions.items()}
        self.free_at = max(self.free_at, self.now) + pass_ms(batch)
        self.queue.append((self.free_at, ids))

    def collect(self) -> Sampled:
        self.now, ids = self.queue.popleft()
        return Sampled(ids, {})

    def run(self, batch: ModelBatch) -> Sampled:
        result = Sampled({}, {})
        for sequence in batch.sequences:
            text, known = self.texts[sequence.sequence_id], sequence.num_target
            draft = batch.drafts.get(sequence.sequence_id, [])
            true = next((n for n, drafted in enumerate(draft) if text[known + n] != drafted), len(draft))
            result.ids[sequence.sequence_id] = text[known + true]
            result.accepted[sequence.sequence_id] = draft[:true]
        self.now = self.free_at = max(self.free_at, self.now) + pass_ms(batch)
        return result


def pass_ms(batch: ModelBatch) -> float:
    rows = batch.load.rows
    size = round_up(rows, VERIFY_TOKENS if batch.drafts else DECODE_ROWS)
    assert size is not None, "drafts that no pass holds"
    return TICK_MS + TOKEN_MS * (size - 1) + VERIFY_MS * bool(batch.drafts)


class Simulation:
    """The engine loop's part."""

    def __init__(self, *texts: list[int], prompt: int, drafting: bool = True) -> None:
        config = SchedulerConfig(
            fill_passes=True, max_prefill_tokens=10_000, speculation=drafting, debug=True
        )
        self.scheduler = Scheduler(CostModel(), config)
        self.scheduler.add_model(0, BlockManager(2000, 32, 1, KVBudget(2000)), 10_000)
        self.speculator = Speculator(self.scheduler.cost, self.scheduler.config, self.scheduler.make_room)
        self.texts = dict(enumerate(texts, 1))
        self.device = Device(self.texts)
        self.rows = []
        for number, text in self.texts.items():
            request = Request(tuple(text[:prompt]), max_tokens=len(text) - prompt)
            self.rows.append(Sequence(number, 0, request, float(number)))
            self.scheduler.submit(self.rows[-1])

    def settle(
        self, plan: TickPlan, sampled: Sampled, started: float, ended: float, more: bool = False
    ) -> None:
        (batch,) = plan.batches
        if batch.decode:
            self.scheduler.observe(batch, pass_ms(batch))
        self.scheduler.commit(plan, sampled.ids, accepted=sampled.accepted, more=more)
        for row in self.rows:
            if row.at_limit and not row.finished:
                self.scheduler.finish(row)
                self.speculator.forget(row.sequence_id)
        self.speculator.settle(plan, sampled.accepted, started, ended)

    @property
    def clock(self) -> float:
        return self.device.now / 1e3 + 1.0

    def tick(self) -> None:
        plan, device = self.scheduler.plan(0.0), self.device
        (whole,) = plan.batches
        self.speculator.draft(plan, device)
        batch = plan.decode_only
        device.now += GAP_MS
        if batch is not None and plan.may_queue:
            steps = MultiStep(batch, device, lambda in_flight: self.scheduler.extend(plan, in_flight))
            for step in steps:
                assert step.error is None
                self.settle(plan, step.sampled, self.clock, self.clock, step.in_flight > 0)
                if steps.extending:
                    steps.extending = not self.speculator.stops_queue(batch, device, step.in_flight)
            return
        started = self.clock
        sampled = device.run(whole)
        self.settle(plan, sampled, started, self.clock)

    def run(self) -> float:
        """Milliseconds from the first token to the last."""
        self.tick()
        begun = self.device.now
        while self.scheduler.sequences:
            self.tick()
        assert [row.token_ids for row in self.rows] == list(self.texts.values())
        return self.device.now - begun


def speedup(*texts: list[int], prompt: int) -> float:
    off, on = (Simulation(*texts, prompt=prompt, drafting=drafting).run() for drafting in (False, True))
    return off / on


def prose(seed: int, count: int, words: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(words) for _ in range(count)]


def false_matches(seed: int, count: int) -> list[int]:
    """A few short phrases again and again, each with any continuation."""
    rng = random.Random(seed)
    phrases = [prose(100 + n, 4, 5000) for n in range(6)]
    text: list[int] = []
    while len(text) < count:
        text += [*rng.choice(phrases), *(rng.randrange(5000) for _ in range(rng.randrange(1, 4)))]
    return text


def edited(text: list[int], seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(5000) if rng.random() < 1 / 15 else token for token in text]


def test_a_quoted_or_edited_text_comes_quicker():
    page = prose(1, 400, 5000)
    assert speedup(page + page, prompt=402) > 5.0
    assert speedup(page + edited(page, 2), prompt=402) > 2.0
    other = prose(3, 400, 5000)
    assert speedup(page + page, other + other, prompt=402) > 3.0


@pytest.mark.parametrize("words", [3, 60, 3000])
def test_what_foretells_nothing_loses_next_to_nothing(words):
    assert speedup(prose(4, 900, words), prompt=20) >= 0.98


def test_matches_that_mean_nothing_lose_next_to_nothing():
    assert speedup(false_matches(5, 1200), prompt=100) >= 0.98


def test_a_row_that_matches_nothing_does_not_wait_for_the_other():
    page = prose(6, 300, 5000)
    assert speedup(page + page, prose(7, 600, 10**6), prompt=300) >= 0.98
