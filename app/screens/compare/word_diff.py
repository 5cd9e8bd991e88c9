"""What two texts have in common, word by word."""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

_WORD = re.compile(r"\s+|\w+|[^\w\s]")
_MOST_WORDS = 6_000
"""Of longer texts lines are compared: words would take seconds."""
_LINE = re.compile(r"[^\n]*\n|[^\n]+")

Piece = tuple[str, bool]
"""A part of a text, and whether the other one has it too."""


def word_diff(left: str, right: str) -> tuple[list[Piece], list[Piece]]:
    """Cut two texts into what both have and what only one has."""
    cut = _WORD if max(len(left), len(right)) < _MOST_WORDS * 4 else _LINE
    a, b = cut.findall(left), cut.findall(right)
    matcher = SequenceMatcher(None, a, b, autojunk=False)
    lefts: list[Piece] = []
    rights: list[Piece] = []
    for tag, a_start, a_end, b_start, b_end in matcher.get_opcodes():
        _add(lefts, a[a_start:a_end], same=tag == "equal")
        _add(rights, b[b_start:b_end], same=tag == "equal")
    return lefts, rights


def shared_part(pieces: Sequence[Piece]) -> float:
    """How much of a text the other one has too, 0 to 1."""
    total = sum(len(text) for text, _ in pieces)
    return sum(len(text) for text, same in pieces if same) / total if total else 1.0


def _add(pieces: list[Piece], words: Sequence[str], *, same: bool) -> None:
    if words:
        pieces.append(("".join(words), same))
