"""Chunks trimmed to captured shapes: never reordered, never empty, and not mostly padding."""

from hypothesis import given
from hypothesis import strategies as st

from engine.api.request import Request
from engine.scheduler.buckets import MIXED_ROWS, PASS_TOKENS, round_up, trim_to_pass
from engine.scheduler.plan import PrefillChunk
from engine.scheduler.sequence import Sequence


def chunk(length: int, rest: int) -> PrefillChunk:
    """A chunk of a prompt that has `rest` more tokens behind it."""
    return PrefillChunk(Sequence(1, 0, Request(tuple(range(5 + length + rest))), 0.0), 5, length)


def trimmed(lengths, num_decode, rest=9):
    return [c.length for c in trim_to_pass([chunk(length, rest) for length in lengths], num_decode)]


def test_a_chunk_fills_a_pass_with_its_rows():
    assert trimmed([140], 0) == [128]
    assert trimmed([140], 3) == [120]
    assert trimmed([256], 0) == [256]
    assert trimmed([300, 100], 20) == [224]


def test_what_would_lose_most_of_its_tokens_is_kept():
    assert trimmed([90], 60) == [64]
    assert trimmed([40], 64) == [40]
    assert trimmed([60], 0) == [60]
    assert trimmed([900], 4) == [900]


def test_prompts_that_end_are_not_cut():
    assert trimmed([100, 60], 0, rest=0) == [100, 60]


@given(st.lists(st.integers(1, 400), min_size=1, max_size=5), st.integers(0, 70), st.integers(0, 3))
def test_trimming_keeps_order_and_most_tokens(lengths, num_decode, rest):
    kept = trimmed(lengths, num_decode, rest)
    assert kept and all(kept)
    assert len(kept) <= len(lengths)
    assert kept[:-1] == lengths[: len(kept) - 1] and kept[-1] <= lengths[len(kept) - 1]
    assert 2 * sum(kept) >= sum(lengths)
    if sum(kept) < sum(lengths):
        assert round_up(num_decode, MIXED_ROWS) + sum(kept) in PASS_TOKENS
