"""Finding a word in the rows of a message, also where it is wrapped, and where it stands in a row."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.markdown.text import Line
from app.transcript.message import FOOTER, HEADER
from app.transcript.paint import Mark

# Beyond so many hits nobody goes from one to the next.
MOST_HITS = 10_000
_MARKS = re.compile(r"[*_`~\\]")


@dataclass(frozen=True, order=True)
class Hit:
    """A hit in the message `number`; `mark` is the place of its first character."""

    number: int
    mark: tuple[int, int]


class Word:
    """What is looked for: capitals and small letters are one."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._pattern = re.compile(re.escape(text), re.IGNORECASE)
        self._reach = len(text)

    def may_be_in(self, source: str) -> bool:
        """Tell quickly whether a message may show the word: markup stands between letters, or for some."""
        if self._pattern.search(source) or any(sign in source for sign in "&[$\\"):
            return True
        return self._pattern.search(_MARKS.sub("", source)) is not None

    def places(self, rows: Sequence[Line]) -> Iterator[tuple[int, int]]:
        """Yield the place of each hit in a message's rows, in order."""
        for first, row in enumerate(rows):
            if row.soft or not _searched(row):
                continue
            text, starts = _joined(rows, first, _end_of_line(rows, first))
            for match in self._pattern.finditer(text):
                index, at = _row_at(starts, match.start())
                mark = rows[first + index].mark
                yield mark[0], mark[1] + at

    def spans(self, rows: Sequence[Line], index: int, here: tuple[int, int] | None) -> list[Mark]:
        """Return where row `index` shows the word, in characters of it; `here` is the place gone to."""
        row = rows[index]
        if not _searched(row):
            return []
        first = last = index
        reach = self._reach
        while rows[first].soft and first > 0 and reach > 0:
            first -= 1
            reach -= len(rows[first].content) + 1
        reach = self._reach
        while reach > 0 and last + 1 < len(rows) and rows[last + 1].soft:
            last += 1
            reach -= len(rows[last].content) + 1
        text, starts = _joined(rows, first, last + 1)
        begin = starts[index - first]
        end = begin + len(row.content)
        spans: list[Mark] = []
        for match in self._pattern.finditer(text):
            if match.end() <= begin or match.start() >= end:
                continue
            number, at = _row_at(starts, match.start())
            mark = rows[first + number].mark
            kind = "hithere" if (mark[0], mark[1] + at) == here else "hit"
            left = max(match.start(), begin) - begin + row.lead
            spans.append((left, min(match.end(), end) - begin + row.lead, kind))
        return spans


def _searched(row: Line) -> bool:
    """Whether a row shows text of the message, not what stands around it."""
    return HEADER < row.mark[0] < FOOTER and not row.action


def _end_of_line(rows: Sequence[Line], first: int) -> int:
    end = first + 1
    while end < len(rows) and rows[end].soft:
        end += 1
    return end


def _joined(rows: Sequence[Line], first: int, end: int) -> tuple[str, list[int]]:
    """Return the text of wrapped rows as one line, and where each row begins in it."""
    parts: list[str] = []
    starts: list[int] = []
    length = 0
    for number in range(first, end):
        glue = rows[number].glue if number > first else ""
        content = rows[number].content
        starts.append(length + len(glue))
        parts += (glue, content)
        length += len(glue) + len(content)
    return "".join(parts), starts


def _row_at(starts: Sequence[int], position: int) -> tuple[int, int]:
    """Return which row a character of the joined line stands in, and where in that."""
    index = max(i for i, start in enumerate(starts) if start <= position)
    return index, position - starts[index]
