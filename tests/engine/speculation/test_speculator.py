"""When drafts are made: what pays, what a sequence may lose, who must not wait."""

import random

import pytest

from engine.api.request import Request
from engine.cache.block_manager import BlockManager
from engine.cache.budget import KVBudget
from engine.scheduler.config import SchedulerConfig
from engine.scheduler.cost_model import CostModel, Load
from engine.scheduler.scheduler import Scheduler
from engine.scheduler.sequence import Sequence
from engine.speculation.proposer import EARNED, FIRST_CREDIT, MOST_CREDIT
from engine.speculation.speculator import Speculator

TICK_MS = 10.0
BLOCKS = 100
"""Room for every text below; all of them are checked in every tick."""
PERIOD = (11, 12, 13, 14, 15, 16, 17, 18, 19, 20)


class Simulation:
    """Rows whose texts are known beforehand, on a machine where a further row costs `row` of a tick."""

    max_ahead = 0

    def __init__(self, *texts: list[int], row: float = 0.08, verify_rows: int = 8, prompt: int = 1):
        cost = CostModel()
        self.row, self.verify_rows, self.texts = row, verify_rows, texts
        for _ in range(6):
            for rows in (1, 4, 8):
                cost.observe(0, Load(rows, 0), self.ms(rows))
        self.scheduler = Scheduler(cost, SchedulerConfig(max_prefill_tokens=10_000, debug=True))
        self.scheduler.add_model(0, BlockManager(BLOCKS, 32, 1, KVBudget(BLOCKS)), 10_000)
        self.speculator = Speculator(self.scheduler.cost, self.scheduler.config, self.scheduler.make_room)
        self.sequences = []
        for number, text in enumerate(texts, 1):
            request = Request(tuple(text[:prompt]), max_tokens=len(text) - prompt)
            self.sequences.append(Sequence(number, 0, request, float(number)))
            self.scheduler.submit(self.sequences[-1])
        self.total_ms = 0.0
        self.ticks = 0
        self.drafts: list[int] = []

    def ms(self, rows: int) -> float:
        return TICK_MS * (1 - self.row + self.row * rows)

    def can_verify(self, sequence: Sequence) -> bool:
        return True

    def tick(self) -> dict[int, list[int]]:
        plan = self.scheduler.plan(0.0)
        self.speculator.draft(plan, self)
        (batch,) = plan.batches
        sampled, accepted = {}, {}
        for sequence in batch.sequences:
            text, count = self.texts[sequence.sequence_id - 1], sequence.num_target
            draft = batch.drafts.get(sequence.sequence_id, [])
            true = next((n for n, proposed in enumerate(draft) if text[count + n] != proposed), len(draft))
            sampled[sequence.sequence_id] = text[count + true]
            accepted[sequence.sequence_id] = draft[:true]
        if batch.decode:
            rows = len(batch.decode) + sum(map(len, batch.drafts.values()))
            assert rows <= self.verify_rows or not batch.drafts
            assert batch.load.rows == rows
            self.total_ms += self.ms(rows)
            self.ticks += 1
            self.drafts.append(rows - len(batch.decode))
            self.scheduler.observe(batch, self.ms(rows))
        drafts = dict(batch.drafts)
        self.scheduler.commit(plan, sampled, accepted=accepted)
        for sequence in self.sequences:
            if sequence.at_limit and not sequence.finished:
                self.scheduler.finish(sequence)
                self.speculator.forget(sequence.sequence_id)
        self.speculator.settle(plan, accepted, 0.0, 0.0)
        return drafts

    def run(self) -> "Simulation":
        while self.scheduler.sequences:
            self.tick()
        for sequence, text in zip(self.sequences, self.texts, strict=True):
            assert sequence.token_ids == text
        return self

    @property
    def speed(self) -> float:
        """Tokens per tick's time without drafts."""
        decoded = sum(s.num_generated - 1 for s in self.sequences)
        return decoded * TICK_MS / self.total_ms


def prose(seed: int, count: int, words: int = 60) -> list[int]:
    """Text in which pairs come back all the time and foretell nothing."""
    rng = random.Random(seed)
    return [rng.randrange(words) for _ in range(count)]


def test_a_quoted_text_is_read_several_tokens_a_tick():
    document = prose(1, 300, words=5000)
    simulation = Simulation(document + document, prompt=300).run()
    assert simulation.speed > 3.0
    (sequence,) = simulation.sequences
    assert sequence.accepted > 200 and sequence.drafted < 1.3 * sequence.accepted


@pytest.mark.parametrize("row", [0.01, 0.08, 0.5, 1.0])
@pytest.mark.parametrize("words", [3, 60, 3000])
def test_what_foretells_nothing_loses_next_to_nothing(row: float, words: int):
    loss = 1.0 - Simulation(prose(2, 800, words), row=row).run().speed
    assert loss <= 0.02


@pytest.mark.parametrize("row", [0.08, 0.3])
def test_a_text_that_stops_quoting_loses_little_and_gains_again(row: float):
    document = prose(3, 200, words=5000)
    switching = [*document, *prose(4, 600), *document, *prose(5, 600), *document]
    simulation = Simulation(switching, row=row, prompt=200).run()
    assert simulation.speed > 1.15
    (sequence,) = simulation.sequences
    assert sequence.accepted > 300


def test_rows_that_cost_as_much_as_a_tick_are_not_worth_a_doubtful_draft():
    half = [token for i in range(400) for token in (7, 8, 9 + i % 2 * random.Random(i).randrange(1, 900))]
    simulation = Simulation(half, row=1.0).run()
    assert simulation.speed >= 0.98


def test_a_row_without_drafts_does_not_wait_for_the_others():
    repeated = list(PERIOD) * 40
    alone = Simulation(repeated, verify_rows=16).run()
    assert alone.speed > 3.0
    beside = Simulation(repeated, list(range(1000, 1400)), verify_rows=16)
    for _ in range(300):
        beside.tick()
    assert not any(beside.drafts)
    free = Simulation(repeated, list(range(1000, 1400)), row=0.001, verify_rows=16)
    for _ in range(40):
        free.tick()
    assert any(free.drafts)


def test_rows_share_what_the_runner_verifies():
    texts = [list(PERIOD) * 20, [token + 50 for token in PERIOD] * 20, [token + 90 for token in PERIOD] * 20]
    simulation = Simulation(*texts, verify_rows=8)
    for _ in range(20):
        assert all(len(draft) for draft in simulation.tick().values())
    assert max(simulation.drafts) == 8 - len(texts)
    assert simulation.run().speed > 2.0


def test_nothing_is_drafted_while_a_prompt_is_read():
    simulation = Simulation(list(PERIOD) * 40)
    while not any(simulation.drafts):
        simulation.tick()
    late = Sequence(9, 0, Request(tuple(range(2000, 2900)), max_tokens=10), 99.0)
    simulation.scheduler.submit(late)
    simulation.texts = (*simulation.texts, *[[]] * 7, list(range(2000, 3000)))
    assert late.remaining and not simulation.tick()
    while late.num_computed < 900:
        assert not simulation.tick()


def test_a_ledger_bounds_what_is_lost():
    simulation = Simulation(prose(7, 1500, words=4), row=0.3)
    while simulation.scheduler.sequences:
        simulation.tick()
        gained = sum(s.accepted for s in simulation.sequences) * TICK_MS
        lost = simulation.total_ms - simulation.ticks * TICK_MS - gained
        assert lost <= (FIRST_CREDIT + EARNED * simulation.ticks) * TICK_MS * 1.1
    assert MOST_CREDIT > FIRST_CREDIT


def test_what_ended_is_forgotten():
    simulation = Simulation(list(PERIOD) * 4, prose(1, 50)).run()
    assert not simulation.speculator._proposers
