"""Whether passes go on one thread alone, since other programs keep members of the team from their cores.

A team computes a pass in a hundred steps, and at each of them all members wait for the last one. Where
another program has a core, that member comes back after milliseconds; one thread by itself loses no more
than its share of a core. Results are the same either way, bit by bit.
"""

import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import median

SLOW = 2.0
"""Times the least that a pass ever took: slower ones say that the machine may be crowded."""
RECENT = 8
"""Passes that are looked at."""
_SLOW_ONES = 3
"""Of them, before one thread is tried: one alone may be the system's moment."""
_LONE_TRIAL, _TEAM_TRIAL = 2, 5
"""Passes of a trial."""
_LOST = 4.0
"""Times what passes of one thread take: a trial in which one of the team takes more has failed."""
_GAIN = 0.85
"""Of what one thread takes, at most, for the team to come back: its longest passes are longer by far."""
_FREE = 0.6
"""Idle part of the cores that the team would use more, for it to be tried."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 8.0
"""Seconds between two trials; each that fails doubles them."""
_STATISTICS = Path("/proc/stat")


def idle_seconds() -> float | None:
    """Of all cores together, since the system's start; None where it does not tell."""
    try:
        with _STATISTICS.open() as file:
            idle, waiting = file.readline().split()[4:6]
        return (int(idle) + int(waiting)) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None


class Crowding:
    """Chooses for one pass after the other, by what the last ones took."""

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        idle: Callable[[], float | None] = idle_seconds,
    ) -> None:
        self._clock, self._idle = clock, idle
        self._alone = False
        self._trial = 0
        """Passes left of a trial of the other way."""
        self._ratios: dict[bool, deque[float]] = {way: deque(maxlen=RECENT) for way in (False, True)}
        """Of the last passes of either way, by whether one thread computed them."""
        self._pause, self._again_at = _FIRST_PAUSE, 0.0
        self._looked: tuple[float, float | None] = (0.0, None)
        """When the last trial was thought of, and what was idle until then."""

    @property
    def alone(self) -> bool:
        """Whether the next pass is one thread's."""
        return self._alone != (self._trial > 0)

    def took(self, ratio: float, threads: int) -> None:
        """What the pass took, over the least that such a pass ever took with the team of so many threads."""
        self._ratios[self.alone].append(ratio)
        if self._trial:
            self._trial -= 1
            if not self._trial or (self._alone and ratio > _LOST * median(self._ratios[True])):
                self._decide()
        elif self._clock() >= self._again_at and self._is_due(threads):
            self._trial = _TEAM_TRIAL if self._alone else _LONE_TRIAL
            self._ratios[not self._alone].clear()

    def _is_due(self, threads: int) -> bool:
        if not self._alone:
            return sum(ratio > SLOW for ratio in self._ratios[False]) >= _SLOW_ONES
        (then, before), now, idle = self._looked, self._clock(), self._idle()
        self._looked, self._again_at = (now, idle), now + _FIRST_PAUSE
        if idle is None:
            return True
        return before is not None and idle - before >= _FREE * (threads - 1) * (now - then)

    def _decide(self) -> None:
        self._trial = 0
        now, tried = self._ratios[self._alone], self._ratios[not self._alone]
        better = median(tried) < _GAIN * median(now) if self._alone else min(tried) < sum(now) / len(now)
        if better:
            self._alone, self._pause = not self._alone, _FIRST_PAUSE
            self._ratios[not self._alone].clear()
        else:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._looked = self._clock(), self._idle()
        self._again_at = self._looked[0] + self._pause
