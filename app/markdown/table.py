"""Tables in terminal cells: columns measured, shrunk to the width, cells wrapped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.markdown.inline import parse_inline
from app.markdown.text import Look, Run, cells, split_lines, wrap

RULE = Look("rule")
_GAP = 3


def cell_runs(row: Sequence[str], columns: int, header: bool) -> list[list[Run]]:
    """Parse a row's cells, exactly `columns` of them."""
    look = Look("tablehead", bold=True) if header else Look()
    padded = [*row[:columns], *[""] * (columns - len(row))]
    return [parse_inline(cell, look) for cell in padded]


def _width(runs: Sequence[Run]) -> int:
    return sum(cells(run.text) for run in runs)


def _words(runs: Sequence[Run]) -> int:
    text = "".join(run.text for run in runs)
    return max((cells(word) for word in text.split()), default=1)


def column_widths(rows: Sequence[Sequence[Sequence[Run]]], available: int) -> list[int]:
    """Return column widths in cells whose sum and gaps fit `available` where that is possible at all."""
    columns = len(rows[0])
    natural = [max(1, *(_width(row[i]) for row in rows)) for i in range(columns)]
    room = max(columns, available - _GAP * (columns - 1))
    if sum(natural) <= room:
        return natural
    least = [min(natural[i], max(4, min(16, max(_words(row[i]) for row in rows)))) for i in range(columns)]
    if sum(least) > room:
        least = [max(1, room // columns)] * columns
    widths, spare = list(least), room - sum(least)
    wanting = [natural[i] - widths[i] for i in range(columns)]
    total = sum(wanting)
    for i in range(columns):
        widths[i] += spare * wanting[i] // total if total > 0 else 0
    return widths


def row_lines(row: Sequence[Sequence[Run]], widths: Sequence[int], alignments: str) -> list[list[Run]]:
    """Lay out one row: as many lines as its tallest cell."""
    columns = [
        [runs for part in split_lines(cell) for _, runs in wrap(part, width)]
        for cell, width in zip(row, widths, strict=True)
    ]
    lines: list[list[Run]] = []
    for index in range(max(len(column) for column in columns)):
        line: list[Run] = []
        for number, (column, width) in enumerate(zip(columns, widths, strict=True)):
            if number:
                line.append(Run(" │ ", RULE))
            runs = column[index] if index < len(column) else ()
            line.extend(_aligned(runs, width, alignments[number], last=number == len(widths) - 1))
        lines.append(line)
    return lines


def _aligned(runs: Sequence[Run], width: int, side: str, last: bool) -> list[Run]:
    runs = [replace_trailing(run) if i == len(runs) - 1 else run for i, run in enumerate(runs)]
    space = max(0, width - _width(runs))
    left = space if side == "r" else space // 2 if side == "c" else 0
    right = 0 if last else space - left
    return [Run(" " * left, Look()), *runs, Run(" " * right, Look())]


def replace_trailing(run: Run) -> Run:
    """Drop the spaces at the end of a wrapped cell's row."""
    return Run(run.text.rstrip(" "), run.look)


def header_rule(widths: Sequence[int]) -> list[Run]:
    """The line below a table's header."""
    return [Run("─┼─".join("─" * width for width in widths), replace(RULE))]
