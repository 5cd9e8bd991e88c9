"""A message being written: its text, and the big pastes that chips in it stand for."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_FOLD_LINES, _FOLD_CHARACTERS = 30, 3_000
_CHIP = re.compile(r"\[pasted #(\d+): [\d,]+ (?:lines|characters)\]")


@dataclass(frozen=True, slots=True)
class Draft:
    """A message being written; `pastes` are the texts that chips stand for, by number."""

    text: str = ""
    pastes: Mapping[int, str] = field(default_factory=dict)

    @property
    def expanded(self) -> str:
        """The whole message, chips replaced by what they stand for."""
        return _CHIP.sub(lambda match: self.pastes.get(int(match[1]), match[0]), self.text)

    @classmethod
    def folded(cls, text: str) -> "Draft":
        """Make a draft of a whole text; a big one becomes a chip."""
        if not is_big(text):
            return cls(text)
        return cls(chip(1, text), {1: text})


def is_big(text: str) -> bool:
    """Whether a paste is folded into a chip."""
    return len(text) > _FOLD_CHARACTERS or text.count("\n") >= _FOLD_LINES


def chip(number: int, text: str) -> str:
    """Return what stands for a paste: `[pasted #1: 20,312 lines]`."""
    lines = text.count("\n") + 1
    size = f"{lines:,} lines" if lines > 1 else f"{len(text):,} characters"
    return f"[pasted #{number}: {size}]"
