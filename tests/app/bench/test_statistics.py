from argparse import ArgumentTypeError

import pytest

from app.bench.statistics import (
    Arrival,
    common_window,
    gaps_inside,
    gaps_touching,
    median,
    percentile,
    tokens_per_second,
)
from app.bench.workload import Prompts, RandomPrompts, not_negative, prompts, sizes


def arrivals(*times: float) -> list[Arrival]:
    return [Arrival(time, 1) for time in times]


def test_percentile_is_a_value_that_was_measured():
    values = [float(value) for value in range(100, 0, -1)]
    assert percentile(values, 50) == 50
    assert percentile(values, 99) == 99
    assert percentile(values, 100) == 100
    assert percentile([7.0], 99) == 7.0
    # One bad value in fifty is what a 99th percentile has to show.
    assert percentile([1.0] * 49 + [9.0], 99) == 9.0


def test_percentile_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
    with pytest.raises(ValueError, match="no values"):
        median([])


def test_median():
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5


def test_a_wait_that_begins_before_the_window_counts_as_loaded_only():
    row = arrivals(0.0, 1.0, 2.0, 7.0, 8.0, 9.0)
    assert gaps_inside(row, 0.0, 2.5) == [1.0, 1.0]
    assert gaps_touching(row, 2.5, 7.5) == [5.0, 1.0]


def test_a_wait_still_open_at_the_end_counts():
    assert gaps_touching(arrivals(0.0, 1.0, 10.0), 1.5, 2.0) == [9.0]


def test_speed_counts_only_while_all_rows_run():
    slow = arrivals(*(1.0 + step for step in range(5)))
    early = arrivals(*(step * 0.5 for step in range(7)))
    assert common_window([slow, early]) == (1.0, 3.0)
    assert tokens_per_second([slow, early]) == (2 + 4) / 2.0


def test_tokens_that_arrive_together_all_count():
    row = [Arrival(0.0, 1), Arrival(1.0, 4), Arrival(2.0, 4)]
    assert tokens_per_second([row]) == 4.0
    assert gaps_touching(row, 0.5, 1.5) == [1.0, 1.0]


def test_rows_that_never_meet_are_refused():
    with pytest.raises(ValueError, match="never ran at the same time"):
        common_window([arrivals(0.0, 1.0), arrivals(2.0, 3.0)])


def test_sizes_and_prompts_are_read():
    assert sizes("1,2, 4") == (1, 2, 4)
    assert sizes("none") == ()
    assert prompts("4x16000") == Prompts(4, 16000)
    assert prompts("1500") == Prompts(1, 1500)
    assert prompts("none") is None
    assert not_negative("0") == 0


@pytest.mark.parametrize("text", ["", "0", "-1", "1,,2", "x", "1.5"])
def test_bad_sizes_are_named(text: str):
    with pytest.raises(ArgumentTypeError, match="whole number"):
        sizes(text)


@pytest.mark.parametrize("text", ["", "4x", "x64", "0x64", "4x0", "4x5x6"])
def test_bad_prompts_are_named(text: str):
    with pytest.raises(ArgumentTypeError, match="whole number"):
        prompts(text)


def test_random_prompts_hold_no_control_token_and_share_no_beginning():
    maker = RandomPrompts(40, lambda token_id: token_id < 10)
    made = [maker.make(64) for _ in range(200)]
    assert all(10 <= token_id < 40 for ids in made for token_id in ids)
    assert len({ids[:16] for ids in made}) == 200
    assert [len(maker.make(1)) for _ in range(100)] == [1] * 100
