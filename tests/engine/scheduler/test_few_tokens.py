"""Prompts beside answers are read in passes of few tokens where these are the quick ones."""

from dataclasses import replace

import pytest

from engine.api.request import Request
from engine.scheduler.buckets import round_to_step, trim_to_few
from engine.scheduler.cost_model import CostModel, Load
from engine.scheduler.plan import PrefillChunk
from engine.scheduler.prefill.chunked_prefill import tick_limit
from engine.scheduler.sequence import Sequence
from tests.engine.scheduler.test_scheduler import Bench


def chunks(*lengths):
    return [PrefillChunk(Sequence(i, 0, Request((1,) * 100), 0.0), 0, n) for i, n in enumerate(lengths)]


@pytest.mark.parametrize(
    ("lengths", "room", "kept"),
    [
        ((20,), 9, [9]),
        ((5, 20), 9, [5, 4]),
        ((12, 3), 9, [9]),
        ((9,), 9, [9]),
        ((20,), 3, [20]),
        ((90,), 9, [90]),
        ((20,), -2, [20]),
    ],
)
def test_the_last_chunks_are_shortened_to_a_quick_pass(lengths, room, kept):
    assert [chunk.length for chunk in trim_to_few(chunks(*lengths), room)] == kept


@pytest.mark.parametrize(
    ("length", "room", "kept"),
    [(1, 40, 4), (5, 40, 4), (6, 40, 8), (11, 40, 8), (15, 40, 12), (31, 40, 16), (35, 40, 32), (3, 2, 3)],
)
def test_chunks_of_quick_passes_have_few_lengths(length, room, kept):
    assert [chunk.length for chunk in round_to_step(chunks(length), room)] == [kept]


def test_ends_of_prompts_and_several_chunks_are_read_as_they_are():
    assert [chunk.length for chunk in round_to_step(chunks(5, 6), 40)] == [5, 6]
    (chunk,) = chunks(7)
    rest = replace(chunk, length=chunk.sequence.remaining)
    assert round_to_step([rest], 1 << 20) == [rest]


def test_a_chunk_beside_rows_fills_a_quick_pass_and_alone_it_is_large():
    bench = Bench(num_blocks=500, few_tokens=16, max_prefill_tokens=200)
    for _ in range(20):
        for rows, tokens in ((1, 0), (1, 10), (0, 200)):
            bench.scheduler.cost.observe(0, Load(rows, 0, tokens), 20.0 + tokens)
    row = bench.submit(10)
    bench.tick()
    bench.submit(900)
    assert bench.lengths(bench.tick()) == {2: 15}
    bench.scheduler.finish(row)
    assert bench.lengths(bench.tick()) == {2: 200}


def test_chunks_of_few_lengths_are_no_longer_than_a_pass_may_be():
    bench = Bench(num_blocks=500, few_tokens=16, max_prefill_tokens=6)
    for _ in range(20):
        for rows, tokens in ((1, 0), (1, 6)):
            bench.scheduler.cost.observe(0, Load(rows, 0, tokens), 20.0 + tokens)
    bench.submit(10)
    for _ in range(2):
        bench.tick()
    bench.submit(900)
    assert bench.lengths(bench.tick()) == {2: 6}


def test_the_pace_of_rows_is_that_of_ticks_that_read_nothing():
    cost, config = CostModel(), Bench().scheduler.config
    rows = Load(7, 700)
    for _ in range(30):
        cost.observe(1, rows, 10.0)
    for _ in range(300):
        cost.observe(1, Load(7, 700, 9, 9000.0), 30.0)
    assert tick_limit({1: rows}, cost, config) == pytest.approx(10.0 * config.tick_factor, rel=0.02)
    for _ in range(4):
        cost.observe(1, rows, 30.0)
    assert tick_limit({1: rows}, cost, config) == pytest.approx(30.0 * config.tick_factor, rel=0.2)


def test_ticks_that_read_more_slowly_than_expected_say_nothing_of_the_others():
    cost, config, rows = CostModel(), Bench().scheduler.config, Load(1, 500)
    for tick in range(30):
        cost.observe(1, rows, 5.0)
        cost.observe(1, Load(1, 500, 64, 64.0 * tick), 12.0)
    for _ in range(6):
        cost.observe(1, Load(1, 500, 64, 2e6), 40.0)
    assert tick_limit({1: rows}, cost, config) == pytest.approx(5.0 * config.tick_factor, rel=0.1)
    for _ in range(6):
        cost.observe(1, Load(1, 500, 64, 2e6), 4.0)
    assert tick_limit({1: rows}, cost, config) < 4.5 * config.tick_factor


def test_a_pause_of_the_machine_does_not_change_the_pace_of_rows():
    cost, rows = CostModel(), Load(1, 500)
    for tick in range(30):
        cost.observe(1, rows, 5.0)
        cost.observe(1, Load(1, 500, 64, 64.0 * tick), 12.0)
    for ms in (1000.0, 900.0, 12.0, 12.0, 12.0):
        cost.observe(1, Load(1, 500, 64, 2000.0), ms)
    assert cost.idle_ms({1: rows}) == pytest.approx(5.0, rel=0.1)
