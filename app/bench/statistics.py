"""Numbers out of token arrival times: percentiles, gaps and speeds. Plain Python, times in seconds."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of all values do not exceed (nearest rank).

    Raises `ValueError` for no values: a percentile of nothing would read as a perfect figure.
    """
    if not values:
        raise ValueError("no values to take a percentile of")
    ordered = sorted(values)
    return ordered[max(0, ceil(len(ordered) * percent / 100) - 1)]


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two middle ones; `ValueError` for no values."""
    if not values:
        raise ValueError("no values to take a median of")
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


@dataclass(frozen=True, slots=True)
class Arrival:
    """Some tokens of one generation reached their consumer at `time`."""

    time: float
    tokens: int


def gaps_inside(arrivals: Sequence[Arrival], start: float, end: float) -> list[float]:
    """Waits between arrivals that lie wholly between `start` and `end`."""
    return [
        after.time - before.time
        for before, after in pairwise(arrivals)
        if start <= before.time and after.time <= end
    ]


def gaps_touching(arrivals: Sequence[Arrival], start: float, end: float) -> list[float]:
    """Waits that overlap the window from `start` to `end`, each in full length.

    A wait that began before `start` counts when it ended inside: the first token after a long prompt
    was submitted is the one that a blocking engine delays. A wait still open at `end` counts too,
    when its token came later.
    """
    return [
        after.time - before.time
        for before, after in pairwise(arrivals)
        if before.time < end and after.time > start
    ]


def longest(
    rows: Sequence[Sequence[Arrival]], start: float, end: float, count: int
) -> list[tuple[float, float]]:
    """The longest waits that overlap the window, as (from, to); what several rows waited for is one."""
    waits = [
        (before.time, after.time)
        for arrivals in rows
        for before, after in pairwise(arrivals)
        if before.time < end and after.time > start
    ]
    found: list[tuple[float, float]] = []
    for wait in sorted(waits, key=lambda wait: wait[0] - wait[1]):
        if len(found) < count and not any(_same(wait, other) for other in found):
            found.append(wait)
    return found


def _same(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Rows of one tick are told one after another: their waits overlap all but a little."""
    overlap = min(one[1], other[1]) - max(one[0], other[0])
    return overlap > 0.5 * min(one[1] - one[0], other[1] - other[0])


def common_window(rows: Sequence[Sequence[Arrival]]) -> tuple[float, float]:
    """From when every row had its first token until the first row had its last one.

    Raises `ValueError` when the rows never ran all at once.
    """
    start = max(arrivals[0].time for arrivals in rows)
    end = min(arrivals[-1].time for arrivals in rows)
    if end <= start:
        raise ValueError(
            "the rows never ran at the same time; KV memory may not hold them all, or they decode too little"
        )
    return start, end


def tokens_per_second(rows: Sequence[Sequence[Arrival]]) -> float:
    """Total tokens per second of all rows while all of them ran."""
    start, end = common_window(rows)
    count = sum(arrival.tokens for arrivals in rows for arrival in arrivals if start < arrival.time <= end)
    return count / (end - start)
