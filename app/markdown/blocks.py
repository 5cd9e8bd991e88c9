"""What the block splitter says: the parts of a markdown text in source order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

BlockKind = Literal["paragraph", "plain", "heading", "rule", "code", "table", "math"]


@dataclass(frozen=True, slots=True)
class Prefix:
    """The left edge that a quote or list item puts before its rows: `first` once, then `rest`."""

    number: int
    kind: Literal["quote", "item"]
    first: str
    rest: str


@dataclass(frozen=True, slots=True)
class Block:
    """A block begins. Texts, headings and rules are whole; code lines and table rows follow as events.

    `level` is a heading's 1-6; `text` is the source of a text, a fence's info string or a table's
    alignment ("l", "c", "r" per column).
    """

    kind: BlockKind
    text: str = ""
    level: int = 0
    prefixes: tuple[Prefix, ...] = ()
    gap: bool = False


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of the open code block; `more` continues the line before, which was too long to wait for."""

    text: str
    more: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the open table; the first is its header."""

    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class End:
    """The open code block or table ends."""


Event: TypeAlias = Block | CodeLine | Row | End
