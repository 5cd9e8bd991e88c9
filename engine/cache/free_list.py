"""Free block numbers as runs, so that a sequence's blocks lie side by side.

Attention on a CPU reads a run of neighbouring blocks without copying. Growth therefore takes the
block after the last one, and a new sequence starts in the middle of the longest run, where it and
its left neighbour both have room to grow. Every call is O(log runs) per run touched.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import chain, compress, count, starmap
from typing import Protocol

SPACING = 32
"""Blocks that a run must have beyond twice the need before it is worth splitting in its middle."""


class FreeBlocks(Protocol):
    """Free block numbers, by some policy of which to hand out."""

    used: bytearray
    """A byte a number: 1 for those that are handed out."""

    @property
    def count(self) -> int:
        """Free blocks."""
        ...

    def __iter__(self) -> Iterator[int]: ...

    def add(self, block: int) -> None:
        """Make `block` free."""
        ...

    def take(self, n: int, after: int | None, /) -> list[int]:
        """Take `n` free blocks, `n <= count`; `after` is the last one of the table that grows."""
        ...


class LowestFree:
    """Hands out the lowest numbers, so that memory behind the highest can be given back."""

    def __init__(self, first: int, end: int) -> None:
        self._heap = list(range(first, end))
        self.used = bytearray(end)
        self._highest: list[int] = []
        """Heap of negative numbers that were handed out; those free again are skipped."""

    @property
    def count(self) -> int:
        """Free blocks."""
        return len(self._heap)

    @property
    def highest_used(self) -> int:
        """The highest number that is not free; 0 when all are."""
        while self._highest and not self.used[-self._highest[0]]:
            heappop(self._highest)
        return -self._highest[0] if self._highest else 0

    def __iter__(self) -> Iterator[int]:
        return iter(self._heap)

    def add(self, block: int) -> None:
        """Make `block` free."""
        self.used[block] = 0
        heappush(self._heap, block)

    def take(self, n: int, _after: int | None, /) -> list[int]:
        """The `n` lowest."""
        taken = [heappop(self._heap) for _ in range(n)]
        for block in taken:
            self.used[block] = 1
            heappush(self._highest, -block)
        if len(self._highest) > 64 + 4 * (len(self.used) - len(self._heap)):
            self._highest = [-block for block in compress(count(), self.used)]
            heapify(self._highest)
        return taken


class FreeRuns:
    """The free numbers of `[first, end)`; all are free at the start."""

    def __init__(self, first: int, end: int) -> None:
        self.count = 0
        self.used = bytearray(end)
        self._first = first
        self._end_of: dict[int, int] = {}
        self._start_of: dict[int, int] = {}
        self._longest: list[tuple[int, int]] = []
        """Heap of (-length, start). Entries of runs that changed are stale and skipped."""
        if end > first:
            self._put(first, end)

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(starmap(range, self._end_of.items()))

    def add(self, block: int) -> None:
        """Make `block` free and join it with its neighbours."""
        self.used[block] = 0
        start, end = block, block + 1
        if block in self._start_of:
            start = self._start_of[block]
            self._drop(start, block)
        if end in self._end_of:
            right = self._end_of[end]
            self._drop(end, right)
            end = right
        self._put(start, end)

    def take(self, n: int, after: int | None, /) -> list[int]:
        """Take `n` free blocks, `n <= count`: those following `after` first, else from long runs."""
        taken: list[int] = []
        if after is not None and after + 1 in self._end_of:
            taken += self._cut(after + 1, after + 1, n)
        while len(taken) < n:
            start, end = self._longest_run()
            need = n - len(taken)
            at = start
            if start != self._first and end - start >= 2 * need + SPACING:
                at = (start + end) // 2
            taken += self._cut(start, at, need)
        return taken

    def _cut(self, start: int, at: int, n: int) -> range:
        """Take up to `n` blocks from `at` out of the run that begins at `start`."""
        end = self._end_of[start]
        stop = min(at + n, end)
        self._drop(start, end)
        self.used[at:stop] = b"\1" * (stop - at)
        if start < at:
            self._put(start, at)
        if stop < end:
            self._put(stop, end)
        return range(at, stop)

    def _longest_run(self) -> tuple[int, int]:
        while True:
            negative, start = self._longest[0]
            if self._end_of.get(start) == start - negative:
                return start, start - negative
            heappop(self._longest)

    def _put(self, start: int, end: int) -> None:
        self._end_of[start] = end
        self._start_of[end] = start
        self.count += end - start
        heappush(self._longest, (start - end, start))
        if len(self._longest) > 64 + 4 * len(self._end_of):
            self._longest = [(s - e, s) for s, e in self._end_of.items()]
            heapify(self._longest)

    def _drop(self, start: int, end: int) -> None:
        del self._end_of[start]
        del self._start_of[end]
        self.count -= end - start
