"""The last seconds of ticks as dots: how long each took, for what, and who waited. No widget."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.screens.engine_view.pixels import FREE, LIMIT, NONE, READING, WAITING, WRITING, Dots
from engine import TickRecord

SECONDS = 8.0
_HEADROOM = 1.15
_CUT = 2.0
"""Budgets that the picture is high, at most."""
_WAITING_ROWS = 2
"""Rows of dots below the bars: a gap, and who waits."""


@dataclass(slots=True)
class _Column:
    """A moment's ticks."""

    ms: float = 0.0
    """Of the longest one."""
    writing: float = 0.0
    reading: float = 0.0
    """Milliseconds for each."""
    limit: float = 0.0
    waiting: int = 0

    @property
    def values(self) -> tuple[float, ...]:
        """All of it, in this order."""
        return self.ms, self.writing, self.reading, self.limit, self.waiting


_IDLE = _Column()


class Timeline:
    """Puts ticks into columns of equal time; each tick stands in all columns that it lasted."""

    def __init__(self) -> None:
        self._columns: dict[int, _Column] = {}
        self._width = 0
        self._newest = 0.0
        self._writing_ms = 0.0
        """What the last tick took that only wrote: the part of writing in one that reads too."""

    def add(self, records: Sequence[TickRecord], width: int, now: float) -> None:
        """Take the ticks that are new, for a picture of `width` columns."""
        if width != self._width:
            self._width, self._newest, self._columns = width, 0.0, {}
        start = max(self._newest, now - SECONDS)
        fresh = []
        for record in reversed(records):
            if record.ended_at <= start:
                break
            fresh.append(record)
        for record in reversed(fresh):
            self._take(record)
        oldest = self._index(now) - width
        self._columns = {index: column for index, column in self._columns.items() if index > oldest}

    @property
    def longest_ms(self) -> float:
        """The longest tick that is seen."""
        return max((column.ms for column in self._columns.values()), default=0.0)

    @property
    def limit_ms(self) -> float:
        """The newest budget; 0 where nobody writes."""
        return self._columns[max(self._columns)].limit if self._columns else 0.0

    def draw(self, rows: int, now: float) -> Dots:
        """Draw the columns up to now, the newest at the right; `rows` of dots, the top one first."""
        dots = np.full((max(0, rows), self._width), NONE, np.uint8)
        levels = rows - _WAITING_ROWS
        if levels < 1 or not self._width:
            return dots
        end = self._index(now)
        seen = [self._columns.get(index, _IDLE).values for index in range(end - self._width + 1, end + 1)]
        ms, writing, reading, limit, waiting = np.array(seen).T
        # A tick far beyond the budget is cut: it would make all others flat.
        highest = limit.max()
        longest = min(ms.max(), _CUT * highest) if highest else ms.max()
        top = _HEADROOM * max(longest, highest, 1.0)
        height = np.where(ms > 0, np.clip(np.round(levels * ms / top), 1, levels), 0)
        written = np.round(height * writing / np.maximum(writing + reading, 1e-9))
        # Above what keeps to it, in what does not.
        budget = np.clip(np.round(levels * limit / top), np.where(ms <= limit, height + 1, 1), levels)
        level = np.arange(levels, 0, -1)[:, None]
        bars = np.where(level <= written, WRITING, np.where(level <= height, READING, NONE))
        bars[-1, height == 0] = FREE
        dots[:levels] = np.where((level == budget) & (limit > 0), LIMIT, bars)
        dots[levels + 1] = np.where(waiting > 0, WAITING, NONE)
        return dots

    def _take(self, record: TickRecord) -> None:
        self._newest = record.ended_at
        ms, rows, tokens = record.measured_ms, record.rows, record.chunk_tokens
        if not tokens:
            self._writing_ms = ms
        writing = min(ms, self._writing_ms or ms * rows / max(1, rows + tokens)) if rows else 0.0
        last = self._index(record.ended_at)
        first = max(self._index(record.ended_at - ms / 1e3), last - self._width)
        for index in range(first, last + 1):
            column = self._columns.setdefault(index, _Column())
            column.ms = max(column.ms, ms)
            column.writing += writing
            column.reading += ms - writing
            column.limit = record.limit_ms or column.limit
            column.waiting = max(column.waiting, record.waiting)

    def _index(self, seconds: float) -> int:
        return int(seconds * max(1, self._width) / SECONDS)
