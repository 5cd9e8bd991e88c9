"""Keeps the text of a conversation apart from the control tokens that a template writes.

Before rendering, the characters that control tokens are made of are swapped in contents, one for one,
for private-use characters that occur nowhere else. Templates may then trim, split, slice or join
contents as they like: a control token found in the rendered text was written by the template. After
the cut at control tokens the characters are swapped back. Kept answers are stood for by one
private-use character each.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from engine.api.errors import TemplateError

_BRACKETS = frozenset("<>[]{}|｜⟨⟩«»")
_PRIVATE_USE = (range(0xF0000, 0xFFFFE), range(0xE000, 0xF900), range(0x100000, 0x10FFFE))


def signal_characters(control_texts: Iterable[str]) -> frozenset[str]:
    """The characters that no control token can do without: brackets, else signs, else its first."""
    found: set[str] = set()
    for text in control_texts:
        brackets = _BRACKETS.intersection(text)
        signs = {char for char in text if not char.isalnum() and not char.isspace()}
        found |= brackets or signs or set(text[:1])
    return frozenset(found)


class Shield:
    """The swaps of one rendering; exact for any contents, private-use characters included."""

    def __init__(self, signals: Iterable[str], texts: Iterable[str]) -> None:
        """`texts`: everything that may appear in the rendered text, the template's source too."""
        self._free = _unused(frozenset(chain.from_iterable(map(set, texts))))
        swaps = {char: next(self._free) for char in sorted(signals)}
        self._hide = str.maketrans(swaps)
        self._restore = str.maketrans({hidden: char for char, hidden in swaps.items()})

    def mark(self) -> str:
        """A new character that stands for something else."""
        return next(self._free)

    def hide(self, value: Any) -> Any:
        """`value` with its text, also inside lists and dictionaries, made harmless."""
        if isinstance(value, str):
            return value.translate(self._hide)
        if isinstance(value, dict):
            return {self.hide(key): self.hide(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(item) for item in value]
        return value

    def restore(self, text: str) -> str:
        """`text` as it was before `hide`."""
        return text.translate(self._restore)


def _unused(taken: frozenset[str]) -> Iterator[str]:
    for code in chain.from_iterable(_PRIVATE_USE):
        if chr(code) not in taken:
            yield chr(code)
    raise TemplateError("the messages use every private-use character of Unicode; remove some of them")
