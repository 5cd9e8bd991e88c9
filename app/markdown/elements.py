"""The elements of a document laid out to a width: texts, code blocks and tables."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from app.markdown.blocks import Block, Prefix
from app.markdown.code import LINE_LIMIT, PLAIN, Highlighter
from app.markdown.inline import close_open_marks, parse_inline, plain_runs
from app.markdown.math import readable
from app.markdown.table import RULE, cell_runs, column_widths, header_rule, row_lines
from app.markdown.text import BAND, Line, Look, Run, break_text, cells, cut_runs, split_lines, wrap
from app.terminal.controls import clean, clean_lines

_log = logging.getLogger(__name__)

# Marks inside code and tables: source line number times this, plus the column.
LINE_STRIDE = 1 << 20
# Marks inside a table's row: the number of its line times this, plus the column.
ROW_STRIDE = 1 << 10
# A table's columns are measured over its first rows, so that the rows after them are laid out once.
MEASURED_ROWS = 24
MIN_WIDTH = 8
_INDENT = Run("  ", Look())
"""What stands before a formula of its own."""
_PAD, _GOES_ON = Run(" ", PLAIN), Run("↳", Look("codewrap"))
"""What stands before a row of code: the second before one that continues the line above."""


@dataclass
class Element:
    """One block and its rows. `stable` rows never change at this width; `extra` ones are drawn anew."""

    number: int
    block: Block
    first_used: bool = False

    def edge(self, soft: bool = False) -> tuple[Run, ...]:
        """Return the runs of the left edge for the next row, using up the list markers."""
        use_first = not self.first_used and not soft
        runs = tuple(
            Run(
                prefix.first if use_first else prefix.rest,
                Look("quote" if prefix.kind == "quote" else "bullet"),
            )
            for prefix in self.block.prefixes
        )
        self.first_used = True
        return runs

    def edge_width(self) -> int:
        """Cells that the left edge takes."""
        return sum(cells(prefix.rest) for prefix in self.block.prefixes)

    @property
    def markdown(self) -> str:
        """The source text."""
        return self.block.text

    def all_runs(self) -> Iterator[Run]:
        """Return the runs of its text; code has none that matter."""
        return iter(())

    def room(self, width: int) -> int:
        """Cells left for the content."""
        return max(MIN_WIDTH, width - self.edge_width())


@dataclass
class TextElement(Element):
    """A paragraph, heading, rule or plain line; `draft` while its end is not known."""

    draft: bool = False
    runs: list[list[Run]] = field(default_factory=list)

    def __post_init__(self) -> None:
        block = self.block
        text = close_open_marks(block.text) if self.draft and block.kind == "paragraph" else block.text
        try:
            runs = self._parse(text)
        except Exception:
            _log.exception("a %s is shown as plain text", block.kind)
            runs = plain_runs(block.text)
        self.runs = split_lines(runs)

    def all_runs(self) -> Iterator[Run]:
        """Return the runs of all lines."""
        return (run for line in self.runs for run in line)

    def _parse(self, text: str) -> list[Run]:
        if self.block.kind == "plain":
            return plain_runs(text)
        if self.block.kind == "heading":
            return parse_inline(text, Look(f"heading{self.block.level}"))
        if self.block.kind == "math":
            return [Run(readable(clean_lines(text)), Look("math"))]
        if self.block.kind == "paragraph" and any(prefix.kind == "quote" for prefix in self.block.prefixes):
            return parse_inline(text, Look("quotetext"))
        return parse_inline(text)

    def layout(self, width: int) -> list[Line]:
        """Return the rows at `width` cells."""
        self.first_used = False
        room = self.room(width)
        if self.block.kind == "rule":
            return [Line((*self.edge(), Run("─" * room, RULE)), (self.number, 0))]
        lines: list[Line] = []
        offset = 0
        item = any(prefix.kind == "item" for prefix in self.block.prefixes)
        indent = (_INDENT,) if self.block.kind == "math" else ()
        for source in self.runs:
            for start, runs in wrap(source, max(MIN_WIDTH, room - 2) if indent else room):
                glue = "" if start and not self._space_before(source, start) else " "
                edge = (*self.edge(), *indent)
                lead = sum(len(run.text) for run in edge)
                mark = (self.number, offset + start)
                lines.append(
                    Line(
                        (*edge, *runs), mark, soft=start > 0, glue=glue, lead=lead, marker=not lines and item
                    )
                )
            offset += sum(len(run.text) for run in source) + 1
        return lines

    @staticmethod
    def _space_before(source: Sequence[Run], start: int) -> bool:
        return "".join(run.text for run in source)[start - 1 : start] == " "

    @property
    def markdown(self) -> str:
        """The source text, without what it stands in."""
        text = self.block.text
        return {"heading": f"{'#' * self.block.level} {text}", "rule": "---"}.get(self.block.kind, text)


@dataclass
class CodeElement(Element):
    """A code block: a label row, then its lines, each highlighted and laid out once."""

    source: list[str] = field(default_factory=list)
    runs: list[list[Run]] = field(default_factory=list)
    closed: bool = False
    stable: list[Line] = field(default_factory=list)
    width: int = 0
    laid: int = 0
    begin: int = 0
    """The character of the next line to lay out at which its first new row begins."""
    ordinal: int = 1
    """Which of its message's code blocks it is, from 1; 0 where they have no numbers."""

    @property
    def markdown(self) -> str:
        """The code."""
        return "\n".join(self.source)

    def __post_init__(self) -> None:
        words = self.block.text.split()
        self.language = words[0].strip("{}.").lower() if words else ""
        self.highlighter = Highlighter(self.language)

    def add(self, text: str, more: bool, coloured: bool = True) -> None:
        """Append a source line, or the rest of one; its colours may wait until the block is closed."""
        if more and self.source:
            # One run: a line of many would be cut from all of them again with every piece.
            shown = "".join(run.text for run in self.runs[-1])
            self.source[-1] += text
            self.runs[-1] = [Run(shown + clean(text), PLAIN)]
            if self.laid == len(self.source):
                self._relay_last()
            return
        self.source.append(text)
        self.runs.append(self.highlighter.line(text) if coloured else [Run(clean(text), PLAIN)])

    def _relay_last(self) -> None:
        """Lay out the last row of the last line again; those before it are full and stay."""
        self.laid -= 1
        self.begin = self.stable.pop().mark[1] - (self.laid + 1) * LINE_STRIDE

    def polish(self) -> Iterator[None]:
        """Highlight the closed block as a whole, in small steps; rows change colours, never places."""
        index = 0
        try:
            for batch in self.highlighter.whole("\n".join(self.source)):
                for runs in batch:
                    if index < len(self.runs) and self._fit(runs, self.source[index]):
                        self.runs[index] = runs
                    index += 1
                yield
        except Exception:
            _log.exception("a %s block keeps its line by line colours", self.language)
        self.width = 0

    @staticmethod
    def _fit(runs: Sequence[Run], source: str) -> bool:
        """Whether these are the colours of a line; a very long one stays without."""
        return len(source) <= LINE_LIMIT and "".join(run.text for run in runs) == clean(source)

    def layout(self, width: int) -> list[Line]:
        """Lay out what is not yet laid out, and return all rows."""
        if width != self.width:
            self.width, self.laid, self.stable, self.begin = width, 0, [], 0
            self.first_used = False
        if not self.stable:
            self.stable.append(self._label(width))
        for number in range(self.laid, len(self.runs)):
            self.stable.extend(self._rows(number, self.runs[number], width, self.begin))
            self.begin = 0
        self.laid = len(self.runs)
        return self.stable

    def _label(self, width: int) -> Line:
        number = f"{self.ordinal} · " if self.ordinal else ""
        name = f"{number}{clean(self.language or 'text')[:20]}"
        room = self.room(width)
        runs = (
            *self.edge(),
            Run(f" {name}".ljust(room - 6), Look("codelabel")),
            Run("copy  ", Look("codelabel")),
        )
        return Line(runs, (self.number, 0), fill="codelabel", action=f"copy:{self.number}")

    def _rows(self, number: int, runs: Sequence[Run], width: int, begin: int = 0) -> list[Line]:
        """Lay out a line, or what of it stands behind the character `begin`, where a row begins."""
        text = "".join(run.text for run in runs)
        base = (number + 1) * LINE_STRIDE
        cuts = break_code(text[begin:], self.room(width) - 2)
        rows = [(begin + start, begin + end) for start, end in cuts]
        cut = [tuple(runs)] if rows == [(0, len(text))] else cut_runs(runs, rows)
        lines = []
        for (start, _), row in zip(rows, cut, strict=True):
            edge = (*self.edge(), _GOES_ON if start else _PAD)
            lead = sum(len(run.text) for run in edge)
            mark = (self.number, base + start)
            lines.append(Line((*edge, *row), mark, soft=start > 0, glue="", fill="codeblock", lead=lead))
        return lines

    def preview(self, text: str, more: bool, width: int) -> list[Line]:
        """Return the rows of a line that is still being written."""
        if more and self.source:
            runs = [Run(clean(text), PLAIN)]
        else:
            runs = self.highlighter.line(text, commit=False)
        return self._rows(len(self.source), runs, width)


def break_code(text: str, width: int) -> list[tuple[int, int]]:
    """Split a code line into rows at the width, spaces kept."""
    if cells(text) <= width:
        return [(0, len(text))]
    if text.isascii():
        return [(start, min(len(text), start + width)) for start in range(0, len(text), width)]
    rows = break_text(text.replace(" ", "\xa0"), width)
    return [(start, rows[i + 1][0] if i + 1 < len(rows) else len(text)) for i, (start, _) in enumerate(rows)]


@dataclass
class TableElement(Element):
    """A table: its first rows set the column widths, later rows are laid out once."""

    rows: list[list[list[Run]]] = field(default_factory=list)
    source: list[tuple[str, ...]] = field(default_factory=list)
    closed: bool = False
    stable: list[Line] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    width: int = 0
    laid: int = 0

    @property
    def measured(self) -> bool:
        """Whether the column widths are final."""
        return self.closed or len(self.rows) >= MEASURED_ROWS

    def parse(self, row: Sequence[str]) -> list[list[Run]]:
        """Parse one row's cells; what cannot be parsed is shown as it is."""
        columns = len(self.block.text)
        try:
            return cell_runs(row, columns, header=not self.rows)
        except Exception:
            _log.exception("a table row is shown as plain text")
            return [plain_runs(cell) for cell in [*row, *[""] * columns][:columns]]

    def add(self, row: Sequence[str]) -> None:
        """Append a row; the first one is the header."""
        self.rows.append(self.parse(row))
        self.source.append(tuple(row))

    @property
    def markdown(self) -> str:
        """The table as it is written."""
        rules = {"l": "---", "c": ":-:", "r": "--:"}
        head, *rest = [[cell.replace("|", "\\|") for cell in row] for row in self.source] or [[]]
        rows = [head, [rules[side] for side in self.block.text], *rest]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)

    def all_runs(self) -> Iterator[Run]:
        """Return the runs of all cells."""
        return (run for row in self.rows for cell in row for run in cell)

    def layout(self, width: int, drafts: Sequence[Sequence[str]] = ()) -> list[Line]:
        """Return all rows, `drafts` (rows still being written) at their end."""
        extra = [self.parse(row) for row in drafts]
        if not self.measured:
            rows = [*self.rows, *extra]
            self.first_used = False
            widths = column_widths(rows, self.room(width))
            return [line for number, row in enumerate(rows) for line in self._row(number, row, widths)]
        if width != self.width:
            self.width, self.laid, self.stable, self.first_used = width, 0, [], False
            self.widths = column_widths(self.rows[:MEASURED_ROWS], self.room(width))
        for number in range(self.laid, len(self.rows)):
            self.stable.extend(self._row(number, self.rows[number], self.widths))
        self.laid = len(self.rows)
        tail = [self._row(self.laid + i, row, self.widths) for i, row in enumerate(extra)]
        return [*self.stable, *(line for lines in tail for line in lines)] if tail else self.stable

    def _row(self, number: int, row: list[list[Run]], widths: Sequence[int]) -> list[Line]:
        fill = BAND if number and number % 2 == 0 else ""
        base = number * LINE_STRIDE
        lines = [
            Line((*self.edge(), *runs), (self.number, base + i * ROW_STRIDE), fill=fill)
            for i, runs in enumerate(row_lines(row, widths, self.block.text))
        ]
        if number == 0:
            lines.append(Line((*self.edge(), *header_rule(widths)), (self.number, LINE_STRIDE - 1)))
        return lines


def gap_line(number: int, before: Sequence[Prefix], after: Sequence[Prefix]) -> Line:
    """The empty row between two blocks, with the quote bars that both stand in."""
    runs: list[Run] = []
    for left, right in zip(before, after, strict=False):
        if left.number != right.number:
            break
        runs.append(Run(left.rest, Look("quote" if left.kind == "quote" else "bullet")))
    return Line(tuple(runs), (number, -1))
