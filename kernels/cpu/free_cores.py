"""How many threads a team has: as many as there are cores that other programs leave it.

A pass is a hundred steps and more, behind each of which all members of a team wait for the last one. Where
another program has a member's core, that is milliseconds a step: on two cores beside one busy program a pass
of 2 ms takes 40 to 400 with two threads, and 4 with one.
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

_WINDOW = 0.2
"""Seconds between two looks."""
_AT_WORK = 0.05
"""Part of that which the calling thread computes: with less it was waiting, and what others did is old."""
_TAKEN, _FREE = 0.5, 0.3
"""Of a core: what others may use for it to be kept, and for it to be taken back."""
_SMOOTHING = 0.5
_STATISTICS = Path("/proc/stat")
_IDLE, _STOLEN = (3, 4), 8
"""Times of a core that are no work: its idle ones; guests' follow those of a host that takes it away."""

_own = threading.local()


def fit_team() -> None:
    """Have torch and the kernels use as many threads, for what the calling thread computes.

    Called before each pass. Where the system does not say what cores do, all are used.
    """
    team: Team | None = getattr(_own, "team", None)
    if team is None:
        team = _own.team = Team()
    team.fit()


def busy_seconds() -> float | None:
    """Of all cores that this process may use, since the system's start; None where it is not told."""
    try:
        cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        with _STATISTICS.open() as file:
            lines = [line.split() for line in file if line.startswith("cpu")]
        ticks = sum(
            int(time)
            for name, *times in lines
            if name in cores
            for kind, time in enumerate(times[:_STOLEN])
            if kind not in _IDLE
        )
        return ticks / os.sysconf("SC_CLK_TCK")
    except (AttributeError, OSError, ValueError):
        return None


class Team:
    """The calling thread's team; it is never larger than torch was told to have it."""

    def __init__(
        self,
        busy: Callable[[], float | None] = busy_seconds,
        own: Callable[[], float] = time.thread_time,
        clock: Callable[[], float] = time.perf_counter,
        cores: int | None = None,
    ) -> None:
        """own: seconds that the calling thread has computed; its members compute as long."""
        self._busy, self._own, self._clock = busy, own, clock
        self._cores = cores or _usable_cores()
        self._limit = self._threads = torch.get_num_threads()
        self._others = 0.0
        """Cores that other programs use."""
        self._next_at = 0.0
        self._last: tuple[float, float, float] | None = None
        """When was looked last, what all had computed and what the calling thread had."""

    def fit(self) -> None:
        """Look at the cores, if it is time to."""
        now = self._clock()
        if now < self._next_at:
            return
        self._next_at = now + _WINDOW
        if torch.get_num_threads() != self._threads:
            self._limit = self._threads = torch.get_num_threads()
        busy, own, last = self._busy(), self._own(), self._last
        if busy is None or self._limit == 1:
            return
        self._last = now, busy, own
        if last is None or own - last[2] < _AT_WORK * (now - last[0]):
            return
        others = (busy - last[1] - self._threads * (own - last[2])) / (now - last[0])
        self._others += _SMOOTHING * (max(0.0, others) - self._others)
        self._choose()

    def _choose(self) -> None:
        free = self._cores - self._others
        fewer, more = (max(1, min(self._limit, int(free + part))) for part in (_TAKEN, _FREE))
        threads = min(self._threads, fewer) if fewer < self._threads else max(self._threads, more)
        if threads != self._threads:
            self._threads = threads
            torch.set_num_threads(threads)


def _usable_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
