"""What is folded in the transcript, such as reasoning: one live line, or all of it in a quiet style."""

from __future__ import annotations

import re

from app.markdown.document import plain_lines
from app.markdown.text import Line, Look, Run, break_text
from app.settings.words import duration_text
from app.terminal.controls import clean

REASONING = -2
REASONING_END = (-1, 0)
_LOOK = Look("reasoning", italic=True)
_WORD = re.compile(r"\S+")
_LAST_LINE = 400


class ReasoningRows:
    """The reasoning of one message: text, word count and rows. Paragraphs are wrapped once."""

    def __init__(self, text: str = "", name: str = "thought", head: tuple[str, str] | None = None) -> None:
        """name: what stands before the number of words; head: what stands in place of both, and its look."""
        self._name = name
        self._head = head
        self._parts: list[str] = []
        self._words = 0
        self._in_word = False
        self._tail = ""
        self.expanded = False
        self.cost = 0, 0.0
        """Its tokens and the seconds that they took; 0 where that is not known."""
        self._rows: list[Line] = []
        self._open_line = ""
        self._offset = 0
        self._width = 0
        self.append(text)

    @property
    def present(self) -> bool:
        """Whether there is any."""
        return bool(self._parts)

    @property
    def text(self) -> str:
        """The whole reasoning."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    def append(self, text: str) -> None:
        """Append text; costs what the text is long."""
        if not text:
            return
        self._parts.append(text)
        self._words += len(_WORD.findall(text)) - (self._in_word and not text[0].isspace())
        self._in_word = not text[-1].isspace()
        self._tail = (self._tail + text)[-_LAST_LINE:]
        if self._width:
            self._take(text)

    def rows(self, width: int, thinking: bool) -> list[Line]:
        """Return the rows at `width` cells: none without reasoning, one while collapsed."""
        if not self._parts:
            return []
        ticker = self._ticker(width, thinking)
        return [ticker, *self.unfolded(width)] if self.expanded else [ticker]

    def unfolded(self, width: int) -> list[Line]:
        """Return the rows of the text at `width` cells, whether they are shown or not."""
        if not self._parts:
            return []
        if width != self._width:
            self._width, self._rows, self._open_line, self._offset = width, [], "", 0
            self._take(self.text)
        return [*self._rows, *self._wrapped(self._open_line)]

    def _take(self, text: str) -> None:
        *lines, self._open_line = (self._open_line + text).split("\n")
        for line in lines:
            self._rows.extend(self._wrapped(line))
            self._offset += len(line) + 1

    def _wrapped(self, line: str) -> list[Line]:
        bar = Run("│ ", Look("reasoningbar"))
        return [
            Line(
                (bar, *(Run(run.text, _LOOK) for run in row.runs)),
                (REASONING, 1 + self._offset + row.mark[1]),
                soft=row.soft,
                glue=row.glue,
                lead=len(bar.text),
            )
            for row in plain_lines(line, width=max(8, self._width - 2))
        ]

    def _size(self) -> str:
        tokens, seconds = self.cost
        count, unit = (tokens, "token") if tokens else (self._words, "word")
        took = f" · {duration_text(seconds * 1000)}" if seconds else ""
        return f"{count:,} {unit}{'' if count == 1 else 's'}{took}"

    def _ticker(self, width: int, thinking: bool) -> Line:
        arrow = "▾" if self.expanded else "▸"
        if self._head is not None:
            head, kind = self._head
            return Line(
                (Run(_cut(f"{arrow} {clean(head)}", width), Look(kind)),), (REASONING, 0), action="reasoning"
            )
        text = f"{arrow} {'thinking…' if thinking else self._name} {self._size()}"
        last = next((line.strip() for line in reversed(self._tail.split("\n")) if line.strip()), "")
        if thinking and last and not self.expanded:
            text += f" · {clean(last)}"
        return Line((Run(_cut(text, width), _LOOK),), (REASONING, 0), action="reasoning")


def _cut(text: str, width: int) -> str:
    rows = break_text(text.replace(" ", "\xa0"), max(4, width - 1))
    return text[: rows[0][1]] + "…" if len(rows) > 1 else text
