"""Messages stacked into one tall column of rows, laid out only near where the reader is."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from textual.selection import Selection

from app.markdown.text import Line
from app.transcript.message import MessageRows


@dataclass(frozen=True)
class Place:
    """A reading position: the row of message `message_id` that shows the source place `mark`."""

    message_id: str
    mark: tuple[int, int]


class Column:
    """All messages of a transcript from the top. Heights of messages far away are estimates."""

    def __init__(self) -> None:
        self.items: list[MessageRows] = []
        self.width = 0
        self._index: dict[str, int] = {}
        self._tops: list[int] = [0]

    @property
    def height(self) -> int:
        """Rows of everything, estimates included."""
        return self._tops[-1]

    def replace(self, items: Sequence[MessageRows]) -> None:
        """Show these messages and no others."""
        self.items = list(items)
        self._index = {item.id: number for number, item in enumerate(self.items)}
        self.measure()

    def append(self, item: MessageRows) -> None:
        """Add a message at the end."""
        self._index[item.id] = len(self.items)
        self.items.append(item)
        self.measure()

    def item(self, message_id: str) -> MessageRows:
        """Return a message; KeyError where there is none with this id."""
        return self.items[self._index[message_id]]

    def holds(self, place: Place) -> bool:
        """Whether there is the message of a reading position."""
        return place.message_id in self._index

    def number(self, message_id: str) -> int:
        """Return a message's place in the order; KeyError where there is none with this id."""
        return self._index[message_id]

    def measure(self) -> None:
        """Add the heights up again."""
        width = self.width
        self._tops = [0, *accumulate(item.height(width) for item in self.items)]

    def top(self, number: int) -> int:
        """Return the first row of message `number`."""
        return self._tops[number]

    def at(self, row: int) -> tuple[MessageRows, int] | None:
        """Return the message at `row` and the row within it."""
        number = bisect_right(self._tops, row) - 1
        if not 0 <= row < self.height or not 0 <= number < len(self.items):
            return None
        return self.items[number], row - self._tops[number]

    def line(self, row: int) -> tuple[MessageRows, Line] | None:
        """Return the message at `row` and the line drawn there; None where nothing is laid out."""
        found = self.at(row)
        if found is None or found[1] >= len(found[0].rows):
            return None
        return found[0], found[0].rows[found[1]]

    def place(self, row: int) -> Place | None:
        """Return the reading position at `row`, laying its message out where it was an estimate."""
        found = self.at(row)
        if found is None:
            return None
        item, within = found
        if item.width == 0:
            estimate = max(1, item.height(self.width))
            item.layout(self.width)
            within = within * len(item.rows) // estimate
        return Place(item.id, item.rows[min(within, len(item.rows) - 1)].mark)

    def row(self, place: Place) -> int:
        """Return the row of a reading position; its message must be laid out."""
        number = self._index[place.message_id]
        return self._tops[number] + self.items[number].row_of(place.mark)

    def selected(self, selection: Selection, origin: int, gutter: int) -> str:
        """Return the text of a selection that counts rows from `origin`, wrapped rows joined again."""
        first = selection.start.y if selection.start else -origin
        last = selection.end.y if selection.end else self.height - origin - 1
        result = ""
        for row in range(first, last + 1):
            found = self.line(row + origin)
            if found is None:
                continue
            start, end = selection.get_span(row) or (0, -1)
            text, lead = found[1].text, 0 if found[1].marker else found[1].lead
            text = text[max(lead, start - gutter) : len(text) if end == -1 else max(0, end - gutter)].rstrip()
            joint = "" if row == first else found[1].glue if found[1].soft else "\n"
            result += joint + text
        return result

    def lay_out(self, item: MessageRows) -> None:
        """Lay a message out wherever it stands; `measure` takes note of it."""
        self._lay_one(item)

    def lay_end(self, rows: int) -> None:
        """Lay out the last messages, at least `rows` rows of them."""
        self._lay(reversed(self.items), rows)
        self.measure()

    def lay_around(self, place: Place, above: int, below: int) -> None:
        """Lay out the message of `place` and enough rows before and after it."""
        number = self._index[place.message_id]
        item = self.items[number]
        self._lay_one(item)
        within = item.row_of(place.mark)
        self._lay(reversed(self.items[:number]), above - within)
        self._lay(iter(self.items[number + 1 :]), below - (len(item.rows) - within))
        self.measure()

    def _lay_one(self, item: MessageRows) -> None:
        if item.width != self.width:
            item.layout(self.width)

    def _lay(self, items: Iterator[MessageRows], rows: int) -> None:
        while rows > 0 and (item := next(items, None)) is not None:
            self._lay_one(item)
            rows -= len(item.rows)


class Shown:
    """The lines that a view showed when it was last asked, to find the rows that are to be drawn."""

    def __init__(self) -> None:
        self._lines: list[tuple[str, Line] | None] = []

    def changed(self, column: Column, top: int, height: int) -> list[int]:
        """Return the rows of the view from `top` whose lines differ from those of the last call."""
        found = (column.line(top + y) for y in range(height))
        lines = [(place[0].id, place[1]) if place is not None else None for place in found]
        old, self._lines = self._lines, lines
        if len(old) != height:
            return list(range(height))
        return [y for y in range(height) if old[y] != lines[y]]
