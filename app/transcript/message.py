"""One message of the transcript: what is shown of it, and its rows at a width."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace

from app.markdown.document import CodeBlock, Document, plain_lines
from app.markdown.text import Line, Look, Run
from app.terminal.controls import clean
from app.transcript.reasoning import REASONING, REASONING_END, ReasoningRows

_log = logging.getLogger(__name__)

HEADER, FOOTER = -3, 1 << 30
# Longer texts are shown without markdown, which costs ten times as much to open.
MARKDOWN_LIMIT = 400_000
_NAMES = {"user": "You", "assistant": "Assistant", "system": "System"}
_FOOTERS = {
    "error": ("footererror", "✗ "),
    "stopped": ("footerstopped", "■ "),
    "limited": ("footerstopped", "■ "),
}


@dataclass(frozen=True)
class MessageView:
    """One message of a conversation path, as the transcript shows it.

    `role` is "user", "assistant", "system" or "tool"; `status` is "complete", "streaming", "stopped",
    "limited" (cut off at a limit) or "error";
    `title` stands in the header (a model's name) and `footer` below the text (tok/s, tokens, a cause);
    what the reasoning cost is 0 where that is not known.
    """

    id: str
    role: str
    text: str
    reasoning: str = ""
    status: str = "complete"
    footer: str = ""
    title: str = ""
    folded: str = "thought"
    """What the folded text is called."""
    reasoning_tokens: int = 0
    reasoning_seconds: float = 0.0
    head: tuple[str, str] | None = None
    """What stands over the folded text in place of its name and size, and the look of that."""
    goes_on: bool = False
    """Whether it belongs to the message before it and has no header of its own."""


class MessageRows:
    """A message's text and its rows. Rows exist once `layout` was called; before, heights are estimates."""

    def __init__(self, view: MessageView) -> None:
        self.id = view.id
        self.role = view.role
        self.title = view.title
        self.status = view.status
        self.footer = view.footer
        self._goes_on = view.goes_on
        self.reasoning = ReasoningRows(view.reasoning, view.folded, view.head)
        self.reasoning.cost = view.reasoning_tokens, view.reasoning_seconds
        self.rows: list[Line] = []
        self._parts = [view.text]
        self._length = len(view.text)
        self._breaks = view.text.count("\n")
        self._document: Document | None = None
        self._fed = 0
        self._width = 0
        self._plain = False

    @property
    def streaming(self) -> bool:
        """Whether more text may come."""
        return self.status == "streaming"

    @property
    def width(self) -> int:
        """The width the rows were made for, 0 before."""
        return self._width

    @property
    def text(self) -> str:
        """The source text, unchanged."""
        return "".join(self._parts)

    def append(self, text: str, reasoning: bool) -> None:
        """Append streamed text."""
        if reasoning:
            self.reasoning.append(text)
        else:
            self._parts.append(text)
            self._length += len(text)
            self._breaks += text.count("\n")

    def height(self, width: int) -> int:
        """Rows at `width` cells: counted where laid out at that width, else estimated."""
        if self._width == width:
            return len(self.rows)
        return 3 - self._goes_on + self.reasoning.present + self._breaks + self._length // max(8, width)

    def layout(self, width: int) -> None:
        """Make the rows at `width` cells, from what came since the last time."""
        try:
            body = self._body(width)
        except Exception:
            _log.exception("message %s is shown without markdown", self.id)
            self._plain = True
            body = self._plain_body(width)
        self._width = width
        reasoning = self.reasoning.rows(width, self.streaming and not self._length)
        if reasoning and body:
            reasoning.append(Line((), REASONING_END))
        rows = [*reasoning, *body] if self._goes_on else [self._header(), *reasoning, *body]
        if self.streaming:
            last = rows.pop() if body else Line((), (0, 0))
            cursor = Run("▌", Look("cursor"))
            rows.append(replace(last, runs=(*last.runs, cursor), strip=None, painted=-1))
        if self.footer:
            kind, sign = _FOOTERS.get(self.status, ("footer", ""))
            for row in plain_lines(sign + self.footer, width):
                runs = tuple(Run(run.text, Look(kind)) for run in row.runs)
                rows.append(Line(runs, (FOOTER, row.mark[1]), row.soft, row.glue))
        rows.append(Line((), (FOOTER + 1, 0)))
        self.rows = rows

    @property
    def name(self) -> str:
        """Who wrote it, in one line."""
        return clean((self.title or _NAMES.get(self.role, self.role)).replace("\n", " "))

    def _header(self) -> Line:
        kind = self.role if self.role in _NAMES else "assistant"
        return Line((Run(self.name, Look(f"name-{kind}", bold=True)),), (HEADER, 0))

    def _body(self, width: int) -> list[Line]:
        if self._plain:
            return self._plain_body(width)
        if self._document is None:
            markdown = self.role == "assistant" and self._length < MARKDOWN_LIMIT
            self._document = Document(markdown)
            self._fed = 0
        if self._fed < len(self._parts):
            self._document.feed("".join(self._parts[self._fed :]), live=self.streaming or self._fed > 0)
            self._fed = len(self._parts)
        if not self.streaming:
            self._document.finish()
        self._document.layout(width)
        return self._document.lines

    def _plain_body(self, width: int) -> list[Line]:
        rows: list[Line] = []
        for number, line in enumerate(self.text.split("\n")):
            rows.extend(plain_lines(line, width, number))
        return rows

    def row_of(self, mark: tuple[int, int]) -> int:
        """Return the row that shows the place `mark`."""
        return max(0, bisect_right(self.rows, mark, key=lambda row: row.mark) - 1)

    def polish(self) -> Iterator[None]:
        """Finish colours in small steps; the rows are made anew at the end."""
        if self._document is not None and self._document.unpolished:
            yield from self._document.polish()
            self.layout(self._width)

    @property
    def unpolished(self) -> bool:
        """Whether closed code waits for its final colours."""
        return self._document is not None and bool(self._document.unpolished)

    def _whole(self) -> Document:
        """The document of all text, also where only a part is closed yet."""
        if self._document is not None and not self.streaming:
            return self._document
        document = Document(self.role == "assistant")
        document.feed(self.text)
        document.finish()
        return document

    def code_blocks(self) -> list[CodeBlock]:
        """Return the code blocks, in order."""
        return self._whole().code_blocks()

    def links(self) -> list[tuple[str, str]]:
        """Return the label and the address of every link."""
        return self._whole().links()

    def block_at(self, number: int) -> tuple[str, str]:
        """Return what the block that is element `number` is called, and its source."""
        if number == REASONING:
            return "reasoning", self.reasoning.text
        return self._document.block_at(number) if self._document is not None else ("", "")

    def searched(self, width: int) -> list[Line]:
        """Return all rows at `width` that hold text, those of folded reasoning too."""
        if self._width != width:
            self.layout(width)
        folded = [] if self.reasoning.expanded else self.reasoning.unfolded(width)
        return [*folded, *self.rows]

    @property
    def extent(self) -> tuple[int, int, bool]:
        """Tells whether text has come since: how much there is, and whether more may come."""
        return self._length, len(self.reasoning.text), self.streaming
