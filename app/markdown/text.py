"""Styled text that knows no theme, and wrapping it to a width in terminal cells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rich.cells import cell_len, get_character_cell_size
from textual.strip import Strip


@dataclass(frozen=True, slots=True)
class Look:
    """What a run of text is; a palette turns it into colours. `kind` names a component or "token:NAME"."""

    kind: str = "text"
    bold: bool = False
    italic: bool = False
    strike: bool = False
    href: str = ""


class Run(NamedTuple):
    """Text in one look."""

    text: str
    look: Look


TEXT = Look()
BAND = "tableband"
"""The `fill` of every second row of a table."""


@dataclass(slots=True)
class Line:
    """One row of the screen.

    `mark` is (element, offset) in the message's source order: it finds the same place again at another width.
    `soft` says that the row continues the one above (joined by `glue` when copied); `fill` names the
    component whose background runs to the right edge; the first `lead` characters are decoration, which
    is not searched, and copied only where it is the `marker` of a list. `strip` caches the drawing for
    palette `painted`.
    """

    runs: tuple[Run, ...]
    mark: tuple[int, int] = (0, 0)
    soft: bool = False
    glue: str = " "
    fill: str = ""
    action: str = ""
    lead: int = 0
    marker: bool = False
    strip: Strip | None = field(default=None, compare=False)
    painted: int = field(default=-1, compare=False)

    @property
    def text(self) -> str:
        """The row's characters without any styling."""
        return "".join(run.text for run in self.runs)

    @property
    def content(self) -> str:
        """The row's characters without the decoration before them."""
        return self.text[self.lead :]


_WIDE = (
    "\u1100-\u115f\u2e80-\u303e\u3041-\ua4cf\uac00-\ud7a3\uf900-\ufaff"
    "\ufe30-\ufe6f\uff01-\uff60\uffe0-\uffe6\U00020000-\U0003fffd"
)
_CLOSING = "、。，．！？：；」』）】》〉〕｝］…ー々"
_UNIT = re.compile(rf"[ ]+|[{_WIDE}][{_CLOSING}]*|[^ {_WIDE}]+[{_CLOSING}]*")


def cells(text: str) -> int:
    """Return the terminal cells that `text` takes."""
    return len(text) if text.isascii() else cell_len(text)


def _hard_break(word: str, width: int) -> int:
    """Return how many characters of `word` fit into `width` cells: at least one."""
    used = 0
    for index, character in enumerate(word):
        used += get_character_cell_size(character)
        if used > width and index:
            return index
    return len(word)


def break_text(text: str, width: int) -> list[tuple[int, int]]:
    """Split one line into (start, end) rows of at most `width` cells, at spaces and between wide characters.

    A word wider than a row is cut. Spaces at a break belong to no row.
    """
    if cells(text) <= width:
        return [(0, len(text))]
    rows: list[tuple[int, int]] = []
    room = max(2, width)
    start = end = used = 0
    for match in _UNIT.finditer(text):
        size = cells(match[0])
        if match[0][0] == " ":
            used += size
            continue
        if used + size > room and end > start:
            rows.append((start, end))
            start, used = match.start(), 0
        while used + size > room:
            cut = start + _hard_break(text[start : match.end()], room)
            if cut >= match.end():
                break
            rows.append((start, cut))
            start, used, size = cut, 0, cells(text[cut : match.end()])
        used += size
        end = match.end()
    return [*rows, (start, end)] if end > start else rows or [(0, len(text))]


def cut_runs(runs: Sequence[Run], rows: Iterable[tuple[int, int]]) -> list[tuple[Run, ...]]:
    """Return the runs of each row of characters [start, end), the rows in order; every run is read once."""
    result: list[tuple[Run, ...]] = []
    index = position = 0
    for start, end in rows:
        row: list[Run] = []
        while index < len(runs):
            run = runs[index]
            after = position + len(run.text)
            if run.text and after > start and position < end:
                row.append(Run(run.text[max(0, start - position) : end - position], run.look))
            if after > end:
                break
            index, position = index + 1, after
        result.append(tuple(row))
    return result


def wrap(runs: Sequence[Run], width: int) -> list[tuple[int, tuple[Run, ...]]]:
    """Wrap one line of runs to `width` cells: a list of (first character, runs)."""
    text = "".join(run.text for run in runs)
    rows = break_text(text, width)
    if len(rows) == 1:
        return [(0, tuple(runs))]
    return [(start, row) for (start, _), row in zip(rows, cut_runs(runs, rows), strict=True)]


def split_lines(runs: Iterable[Run]) -> list[list[Run]]:
    """Split runs at the line breaks inside them."""
    lines: list[list[Run]] = [[]]
    for run in runs:
        head, *rest = run.text.split("\n")
        if head:
            lines[-1].append(Run(head, run.look))
        lines.extend([Run(part, run.look)] if part else [] for part in rest)
    return lines
