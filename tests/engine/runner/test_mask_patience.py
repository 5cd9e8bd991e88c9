"""How long rows wait for what one of them is held to."""

from types import SimpleNamespace

import pytest

from engine.runner import sampler


class Clock:
    """Goes on only while somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Mask:
    """Never ready, or from the beginning."""

    def __init__(self, clock: Clock, ready: bool) -> None:
        self.clock, self.set, self.late, self.ready = clock, ready, False, self

    def is_set(self) -> bool:
        return self.set

    def wait(self, seconds: float) -> None:
        self.clock.now += seconds


def rows(clock: Clock, *ready: bool | None) -> list[SimpleNamespace]:
    """A row each; None: held to nothing."""
    return [
        SimpleNamespace(sequence_id=index, matcher=None if one is None else Mask(clock, one))
        for index, one in enumerate(ready)
    ]


@pytest.mark.parametrize("others", [1, 7, 31])
def test_all_rows_together_wait_no_longer_than_one_alone_would(monkeypatch, others):
    clock = Clock()
    monkeypatch.setattr(sampler, "time", clock)
    given = rows(clock, False, *[None] * others)
    assert sampler.wait_for_masks(given, lambda: False) == {0}
    step = sampler._MASK_WAIT_S
    assert sampler.PATIENCE_S / (1 + others) <= clock.now <= sampler.PATIENCE_S / (1 + others) + 2 * step

    before = clock.now
    assert sampler.wait_for_masks(given, lambda: False) == {0}
    assert clock.now == before, "nobody waits a second time for the same mask"


def test_a_device_that_is_busy_is_waited_for(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(sampler, "time", clock)
    assert sampler.wait_for_masks(rows(clock, False, True), lambda: clock.now < 0.01) == {0}
    assert clock.now >= 0.01
