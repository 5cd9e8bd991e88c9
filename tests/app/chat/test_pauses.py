"""An answer's speed is that of the time in which it ran."""

import pytest

from app.chat.pauses import Pauses
from engine import Finished, FinishReason


def finished(tokens: int, tok_s: float) -> Finished:
    return Finished(FinishReason.STOP, None, 5, 0, tokens, 1.0, 12.0, tok_s)


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ([], 10.0),
        ([(1, True), (6, False)], 20.0),
        ([(1, True), (3, False), (4, True), (7, False)], 20.0),
        ([(1, True)], 10.0),
        ([(1, True), (99, False)], 10.0),
    ],
)
def test_pauses_that_ended_are_left_out(turns, expected):
    times = iter([time for time, _ in turns])
    pauses = Pauses(lambda: next(times))
    for _, paused in turns:
        pauses.note(paused)
    stats = pauses.stats(finished(101, 10.0))
    assert stats.tok_s == pytest.approx(expected)
    assert (stats.tokens, stats.ttft_ms, stats.prompt_tokens) == (101, 12.0, 5)


def test_an_answer_without_tokens_has_no_speed():
    pauses = Pauses(lambda: 0.0)
    pauses.note(True)
    assert pauses.stats(finished(0, 0.0)).tok_s == 0.0
