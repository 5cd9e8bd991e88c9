import math
from random import Random

import pytest

from engine.api.request import Request
from engine.scheduler.config import SchedulerConfig
from engine.scheduler.cost_model import CostModel, Load, chunk_pairs
from engine.scheduler.prefill.chunked_prefill import Readers, plan_chunks
from engine.scheduler.sequence import Sequence


def truth(load, slower=1.0):
    """Milliseconds of a simulated machine; small prefill chunks cost a constant besides."""
    extra = 2.0 if load.prefill_tokens > 8 else 0.0
    return slower * (
        6.0
        + 0.14 * load.rows
        + 0.075 * load.prefill_tokens
        + extra
        + 0.12 * load.context / 1000
        + 5.0 * load.prefill_pairs / 1e6
    )


def mixed(tick, rows=7):
    tokens = 0 if tick % 3 == 0 else 40 + 10 * (tick % 5)
    return Load(rows, 500 * rows + tick * rows, tokens, chunk_pairs(300 + tick, tokens))


def affordable(model, load, limit, start=0):
    """Tokens that the scheduler would read beside `load` in a pass of `limit` milliseconds."""
    reader = Sequence(1, 1, Request(tuple(range(5000))), 0.0, num_computed=start)
    config = SchedulerConfig(min_prefill_tokens=0)
    chunks = plan_chunks(Readers([reader]), {1: load}, limit - model.predict(1, load), model, config, 10_000)
    return sum(chunk.length for chunk in chunks)


def error(model, load, slower=1.0):
    return abs(model.predict(1, load) / truth(load, slower) - 1.0)


@pytest.mark.parametrize("slower", [0.1, 1.0, 30.0])
def test_converges_in_ten_ticks(slower):
    random, model = Random(1), CostModel()
    for tick in range(10):
        model.observe(1, mixed(tick), truth(mixed(tick), slower) * random.uniform(0.95, 1.05))
    assert max(error(model, mixed(tick), slower) for tick in range(10, 30)) < 0.2


def test_sane_before_any_observation():
    model = CostModel()
    assert 1.0 < model.predict(1, Load(rows=1)) < 50.0
    assert model.predict(1, Load()) == 0.0
    assert model.predict(1, Load(rows=8)) > model.predict(1, Load(rows=1))
    assert affordable(model, Load(rows=4), 2 * model.idle_ms({1: Load(rows=4)})) > 0


@pytest.mark.parametrize("slower", [0.4, 2.0, 5.0])
def test_adapts_within_three_ticks_of_a_change(slower):
    random, model = Random(2), CostModel()
    for tick in range(40):
        model.observe(1, mixed(tick), truth(mixed(tick)) * random.uniform(0.97, 1.03))
    for tick in range(40, 43):
        model.observe(1, mixed(tick), truth(mixed(tick), slower) * random.uniform(0.97, 1.03))
    assert max(error(model, mixed(tick), slower) for tick in range(43, 50)) < 0.25


def test_one_slow_tick_changes_little():
    model = CostModel()
    for tick in range(30):
        model.observe(1, mixed(tick), truth(mixed(tick)))
    model.observe(1, mixed(30), 10 * truth(mixed(30)))
    assert max(error(model, mixed(tick)) for tick in range(31, 40)) < 0.2


def test_prefill_stays_learned_while_everybody_decodes():
    model = CostModel()
    for tick in range(30):
        model.observe(1, mixed(tick), truth(mixed(tick)))
    for tick in range(3000):
        load = Load(7, 3500 + 7 * tick)
        model.observe(1, load, truth(load))
    load = Load(7, 3500 + 21000, 60, chunk_pairs(300, 60))
    assert error(model, load) < 0.25


def test_coefficients_are_never_negative():
    random, model = Random(3), CostModel()
    for _ in range(300):
        load = Load(random.randrange(9), random.randrange(9000), random.randrange(600))
        model.observe(1, load, random.uniform(1.0, 100.0))
        assert model.fixed_ms(1) >= 0.0
        assert model.token_ms(1, 0, 1) > 0.0
        assert model.predict(1, Load(1, 10)) <= model.predict(1, Load(2, 10))


def test_budget_keeps_the_limit():
    model = CostModel()
    for tick in range(60):
        model.observe(1, mixed(tick), truth(mixed(tick)))
    rows = Load(7, 3600)
    limit = 2 * model.idle_ms({1: rows})
    tokens = affordable(model, rows, limit, start=300)
    planned = Load(7, 3600, tokens, chunk_pairs(300, tokens))
    assert model.predict(1, planned) == pytest.approx(limit, rel=0.05)
    assert truth(planned) < 1.2 * 2 * truth(rows)
    assert affordable(model, rows, 1.0) == 0


def test_models_are_told_apart():
    model = CostModel()
    for _ in range(10):
        model.observe(1, Load(rows=1), 5.0)
        model.observe(2, Load(rows=1), 50.0)
    loads = {1: Load(rows=1), 2: Load(rows=1)}
    assert model.idle_ms(loads) == pytest.approx(55.0, rel=0.1)
    model.forget(2)
    assert model.predict(2, Load(rows=1)) < 20.0


def test_a_model_that_joins_begins_as_slow_as_the_slowest_that_was_measured():
    model = CostModel()
    for tick in range(10):
        for key, slower in ((1, 1.0), (2, 20.0)):
            model.observe(key, mixed(tick), truth(mixed(tick), slower))
    joins = Load(prefill_tokens=40, prefill_pairs=chunk_pairs(0, 40))
    assert model.predict(3, joins) == pytest.approx(model.predict(2, joins))
    model.observe(3, joins, 1000.0)
    assert model.predict(3, joins) == pytest.approx(1000.0, rel=0.05)
    before = model.predict(2, joins)
    assert before < 500.0, "what one model takes says nothing of another that was measured"


@pytest.mark.parametrize("few", [16, None])
def test_the_first_chunk_of_a_model_that_was_never_measured_is_small_beside_others(few):
    """A pass that takes long holds up everybody's rows; where few tokens cost no less it is not cut."""
    model = CostModel()
    for tick in range(10):
        model.observe(1, mixed(tick), truth(mixed(tick)))
    reader = Sequence(1, 2, Request(tuple(range(5000))), 0.0)
    config, rows = SchedulerConfig(min_prefill_tokens=1, few_tokens=few), {1: Load(rows=2)}

    def read(loads):
        return sum(c.length for c in plan_chunks(Readers([reader]), loads, 100.0, model, config, 200))

    assert read({}) == 200, "alone there is nobody to hold up"
    if few is None:
        assert read(rows) == 200
        return
    assert read(rows) == 4
    model.observe(2, Load(prefill_tokens=4, prefill_pairs=chunk_pairs(0, 4)), 8.0)
    assert read(rows) > 8


def test_a_first_tick_that_compiled_its_kernels_does_not_make_reading_dear_for_long():
    model = CostModel()
    model.observe(1, Load(prefill_tokens=19, prefill_pairs=chunk_pairs(0, 19)), 9000.0)
    assert model.reading_ms(1, 400) > 10_000
    for tick in range(3):
        model.observe(1, Load(rows=1, context=19 + tick), 20.0)
    assert 10 < model.reading_ms(1, 400) < 2000


def test_what_reading_costs_does_not_run_away_while_a_noisy_machine_only_decodes() -> None:
    rng, cost = Random(3), CostModel()
    for tick in range(60):
        reads = 256 if tick % 3 else 0
        cost.observe(0, Load(1, 100 + tick, reads, chunk_pairs(100 * tick, reads)), 0.3 + 0.005 * reads)
    asked = Load(1, 200, 512, chunk_pairs(0, 512))
    learned = cost.predict(0, asked)
    for tick in range(3000):
        slower = 4.0 if tick // 50 % 7 == 0 else 1.0
        cost.observe(0, Load(1, 200 + tick), 0.3 * slower * math.exp(abs(rng.gauss(0.0, 0.4))))
    assert learned / 3.0 < cost.predict(0, asked) < 3.0 * learned


def test_reading_that_takes_less_than_was_known_says_nothing_of_rows():
    """Had they been thought to take less too, what the next ticks take would all be the prompt's."""
    model, rows = CostModel(), Load(7, 1900)
    for tick in range(40):
        reads = (0, 64, 32)[tick % 3]
        ms = 9.7 + (30.0 + 0.2 * reads if reads else 0.0)
        model.observe(1, Load(7, 1600 + 7 * tick, reads, chunk_pairs(40 * tick, reads)), ms)
    assert model.chunk_ms(1) == pytest.approx(30.0, rel=0.05)
    for tick in range(4):
        model.observe(1, Load(7, 1890 + 7 * tick, 4, chunk_pairs(64 + 4 * tick, 4)), 12.3)
    assert model.predict(1, rows) == pytest.approx(9.7, rel=0.03)
    assert model.chunk_ms(1) < 2.0


def test_a_tick_that_reads_nothing_corrects_what_rows_were_thought_to_take():
    model = CostModel()
    for tick in range(60):
        model.observe(1, Load(7, 60 + 7 * tick), 8.0)
    for tick in range(32):
        model.observe(1, Load(7, 480 + 7 * tick, 8, chunk_pairs(8 * tick, 8)), 15.0 + 0.25 * tick)
    model.observe(1, Load(7, 704), 8.2)
    assert model.idle_ms({1: Load(7, 711)}) == pytest.approx(8.2, rel=0.02)
