"""Answers keep their share of their pace while prompts are read, where a pass that reads costs several."""

import pytest

from engine.scheduler.prefill.pace import LONG_MS, OWED_MS, READ_TICKS, REST_TICKS, Pace
from tests.engine.scheduler.test_scheduler import Bench

IDLE_MS, READS_MS, TOKEN_MS = 2.2, 3.5, 0.02


class TimedBench(Bench):
    """Passes take what `IDLE_MS`, `READS_MS` and `TOKEN_MS` say; the clock goes on by it."""

    def __init__(self, **config):
        options = {"max_prefill_tokens": 2048, "tick_extra_ms": 8.0, "debug": False} | config
        super().__init__(num_blocks=20_000, context_length=70_000, **options)
        self.ms = 0.0

    def tick(self):
        plan = self.scheduler.plan(self.ms / 1e3)
        for batch in plan.batches:
            tokens = sum(chunk.length for chunk in batch.prefill)
            ms = IDLE_MS + (READS_MS + TOKEN_MS * tokens if tokens else 0.0)
            self.scheduler.observe(batch, ms)
            self.ms += ms
        self.commit(plan)
        return plan

    def commit(self, plan, failed=None):
        sampled = {one.sequence_id: 7 for batch in plan.batches for one in batch.sequences}
        return self.scheduler.commit(plan, sampled, now=self.ms / 1e3)


def answering(bench: TimedBench, **options):
    """A row that has decoded undisturbed for a while, after a prompt that told what reading costs."""
    first = bench.submit(3000, max_tokens=60_000, **options)
    for _ in range(60):
        bench.tick()
    assert len(first.token_ids) > 3040
    return first


def read_beside(bench: TimedBench, row, tokens: int) -> tuple[float, float]:
    """Milliseconds until a prompt of `tokens` is read, and the row's pace meanwhile beside an idle one."""
    prompt, began, written = bench.submit(tokens), bench.ms, len(row.token_ids)
    while prompt.remaining > 1 or len(prompt.token_ids) <= tokens:
        bench.tick()
    took = bench.ms - began
    return took, (len(row.token_ids) - written) * IDLE_MS / took


@pytest.mark.parametrize(("factor", "least"), [(2.0, 0.48), (1.5, 0.63), (1.2, 0.77), (4.7, 0.2)])
def test_a_long_prompt_leaves_answers_their_pace(factor, least):
    bench = TimedBench(tick_factor=factor)
    ms, pace = read_beside(bench, answering(bench), 60_000)
    assert least < pace < 1.3 / factor
    alone = 60_000 * TOKEN_MS * 10.2 / (10.2 - IDLE_MS - READS_MS)
    assert ms < 1.1 * alone * max(1.0, factor / (factor - 1.0))


def test_a_short_prompt_is_read_without_rests():
    bench = TimedBench()
    row = answering(bench)
    bench.submit(900)
    ticks = [bool(bench.lengths(bench.tick())) for _ in range(8)]
    assert ticks == sorted(ticks, reverse=True) and sum(ticks) >= 5
    assert row.token_ids[-1] == 7


def test_prompts_get_on_even_where_answers_are_to_keep_everything():
    bench = TimedBench(tick_factor=1.0)
    answering(bench)
    prompt, read = bench.submit(20_000), []
    for _ in range(10 * REST_TICKS):
        read.append(bool(bench.lengths(bench.tick())))
    assert prompt.num_computed > 0 and 5 < sum(read) < 60
    rests = "".join(".R"[not reads] for reads in read[20:]).split(".")
    assert max(map(len, rests)) == REST_TICKS


def test_nobody_waits_for_rests_where_nobody_answers():
    bench = TimedBench()
    row = answering(bench)
    bench.submit(30_000)
    while bench.lengths(bench.tick()):
        pass
    bench.scheduler.finish(row)
    assert bench.lengths(bench.tick()) == {2: 2048}


def read_short(bench: TimedBench) -> int:
    """Read a prompt of 200 tokens to its first token; returns the ticks that read anything."""
    short, reads = bench.submit(200), 0
    while len(short.token_ids) <= 200:
        reads += bool(bench.lengths(bench.tick()))
    bench.scheduler.finish(short)
    return reads


def test_short_prompts_do_not_wait_for_the_rests_of_a_long_one():
    bench, waits = TimedBench(), []
    answering(bench)
    long = bench.submit(60_000)
    for _ in range(50):
        bench.tick()
    while long.remaining * TOKEN_MS > LONG_MS:
        began = bench.ms
        read_short(bench)
        waits.append(bench.ms - began)
        for _ in range(40):
            bench.tick()
    assert len(waits) > 20 and max(waits) < 60


def test_a_long_prompt_gets_on_beside_short_ones_without_end():
    bench = TimedBench()
    answering(bench)
    long, began = bench.submit(30_000), bench.ms
    while long.remaining > 1:
        assert read_short(bench)
    assert bench.ms - began < 2.5 * 30_000 * TOKEN_MS * 10.2 / (10.2 - IDLE_MS - READS_MS)


def test_ticks_queued_in_a_rest_end_with_it():
    bench = TimedBench()
    answering(bench)
    bench.submit(30_000)
    while bench.lengths(bench.tick()):
        pass
    plan = bench.scheduler.plan(0.0)
    queued = 0
    while not bench.lengths(plan) and bench.scheduler.extend(plan, queued + 1):
        queued += 1
    assert 0.5 * OWED_MS < queued * (bench.scheduler.config.tick_factor - 1.0) * IDLE_MS < 1.6 * OWED_MS


def test_the_estimated_wait_counts_rests():
    bench = TimedBench()
    row = answering(bench)
    prompt = bench.submit(60_000)
    for _ in range(100):
        bench.tick()
    began, estimate = bench.ms, bench.scheduler.wait_seconds()[prompt.sequence_id]
    while prompt.remaining > 1:
        bench.tick()
    assert row.remaining == 1
    assert estimate == pytest.approx((bench.ms - began) / 1e3, rel=0.25)


@pytest.mark.parametrize("looks", [True, False])
def test_a_tick_now_and_then_tells_what_rows_take_whose_contexts_have_grown(looks):
    pace = Pace(1.8, looks)
    rests = [pace.begin(10.0, True, 0.0) for _ in range(3 * READ_TICKS + 3)]
    expected = [looks and tick % (READ_TICKS + 1) == READ_TICKS for tick in range(len(rests))]
    assert rests == expected
    assert pace.steady, "such a tick is learned from"
    for idle_ms, waiting in ((10.0, False), (0.0, True)):
        assert not any(pace.begin(idle_ms, waiting, 0.0) for _ in range(2 * READ_TICKS))
