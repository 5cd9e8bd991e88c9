"""A markdown text as rows of the screen: grows at its end, closed rows are laid out once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from app.markdown.blocks import Block, CodeLine, End, Event, Row
from app.markdown.elements import CodeElement, Element, TableElement, TextElement, gap_line
from app.markdown.links import links_of
from app.markdown.splitter import Splitter
from app.markdown.text import Line

Growing = CodeElement | TableElement
_NAMES = {"plain": "line", "math": "formula"}
# Of a large piece of text only the last code lines are coloured at once.
LIVE_LINES = 60


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A code block's contents, and the language it says it is in."""

    text: str
    language: str


class Document:
    """Text in, rows out. `lines` are the rows at the width last given to `layout`."""

    def __init__(self, markdown: bool = True) -> None:
        self._splitter = Splitter(markdown)
        self.elements: list[Element] = []
        self.lines: list[Line] = []
        self._closed_rows = 0
        self._closed_elements = 0
        self._width = 0
        self._finished = False
        self._starts: dict[int, int] = {}
        self.unpolished: list[CodeElement] = []
        self._codes = 0
        self._numbered = markdown

    def feed(self, text: str, live: bool = True) -> None:
        """Append text. Code that is not `live` gets its colours later, by `polish`."""
        self._apply(self._splitter.feed(text), LIVE_LINES if live else 0)

    def finish(self) -> None:
        """Close the last block; nothing may be fed after it."""
        if self._finished:
            return
        self._apply(self._splitter.finish(), LIVE_LINES)
        self._finished = True

    def _open(self) -> Growing | None:
        last = self.elements[-1] if self.elements else None
        return last if isinstance(last, (CodeElement, TableElement)) and not last.closed else None

    def _apply(self, events: list[Event], coloured: int) -> None:
        for left, event in zip(range(len(events), 0, -1), events, strict=True):
            if isinstance(event, Block):
                self._codes += self._numbered and event.kind == "code"
                self.elements.append(make_element(len(self.elements), event, ordinal=self._codes))
                continue
            element = self._open()
            if isinstance(event, CodeLine) and isinstance(element, CodeElement):
                element.add(event.text, event.more, left <= coloured)
            elif isinstance(event, Row) and isinstance(element, TableElement):
                element.add(event.cells)
            elif isinstance(event, End) and element is not None:
                element.closed = True
                if isinstance(element, CodeElement) and element.language:
                    self.unpolished.append(element)

    def layout(self, width: int) -> int:
        """Lay out to `width` cells; return the first row that may have changed."""
        if width != self._width:
            self._width, self._closed_rows, self._closed_elements = width, 0, 0
            self.lines = []
        changed = self._closed_rows
        del self.lines[changed:]
        open_element = self._open()
        for element in self.elements[self._closed_elements :]:
            if element is open_element:
                break
            self._gap(element)
            self._starts[element.number] = len(self.lines)
            self.lines.extend(_rows(element, width))
            self._closed_elements += 1
            self._closed_rows = len(self.lines)
        if not self._finished or open_element is not None:
            self._layout_tail(open_element, width)
        return changed

    def _gap(self, element: Element) -> None:
        number = element.number
        if element.block.gap and self.lines:
            before = self.elements[number - 1].block.prefixes if 0 < number <= len(self.elements) else ()
            self.lines.append(gap_line(number, before, element.block.prefixes))

    def _layout_tail(self, element: Growing | None, width: int) -> None:
        """Rows of the open element and of what finishing now would add; nothing of it is kept."""
        events = self._splitter.preview()
        if element is not None:
            self._gap(element)
            drafts = self._drafts(events, element)
            if isinstance(element, TableElement):
                self.lines.extend(
                    element.layout(width, [event.cells for event in drafts if isinstance(event, Row)])
                )
            else:
                self.lines.extend(element.layout(width))
                for event in drafts:
                    if isinstance(event, CodeLine):
                        self.lines.extend(element.preview(event.text, event.more, width))
            events = events[len(drafts) :]
        shadows: list[Element] = []
        codes = self._codes
        for event in events:
            if isinstance(event, Block):
                codes += self._numbered and event.kind == "code"
                number = len(self.elements) + len(shadows)
                shadows.append(make_element(number, event, draft=True, ordinal=codes))
            elif shadows and isinstance(event, CodeLine) and isinstance(shadows[-1], CodeElement):
                shadows[-1].add(event.text, event.more)
            elif shadows and isinstance(event, Row) and isinstance(shadows[-1], TableElement):
                shadows[-1].add(event.cells)
        for shadow in shadows:
            self._gap(shadow)
            self.lines.extend(_rows(shadow, width))

    @staticmethod
    def _drafts(events: list[Event], element: Growing) -> list[Event]:
        kind = Row if isinstance(element, TableElement) else CodeLine
        drafts: list[Event] = []
        for event in events:
            if not isinstance(event, kind):
                break
            drafts.append(event)
        return drafts

    def polish(self) -> Iterator[None]:
        """Finish the colours of closed code in small steps. Rows are replaced, none is added or removed."""
        while self.unpolished:
            element = self.unpolished.pop(0)
            yield from element.polish()
            start, count = self._starts.get(element.number), len(element.stable)
            if start is not None and self._width and element.number < self._closed_elements:
                self.lines[start : start + count] = element.layout(self._width)

    def code_blocks(self) -> list[CodeBlock]:
        """Return the code blocks."""
        found = [element for element in self.elements if isinstance(element, CodeElement)]
        return [CodeBlock(element.markdown, element.language) for element in found]

    def block_at(self, number: int) -> tuple[str, str]:
        """Return what element `number` is called and its source; empty where there is none."""
        if not 0 <= number < len(self.elements):
            return "", ""
        element = self.elements[number]
        kind = (
            f"code block {element.ordinal or ''}" if isinstance(element, CodeElement) else element.block.kind
        )
        return _NAMES.get(kind, kind).rstrip(), element.markdown

    def links(self) -> list[tuple[str, str]]:
        """Return the label and the address of every link, each once."""
        runs = (run for element in self.elements for run in element.all_runs())
        return links_of(runs)


def make_element(number: int, block: Block, draft: bool = False, ordinal: int = 1) -> Element:
    """Make the element of a block; `ordinal` is which code block it is, if it is one."""
    if block.kind == "code":
        return CodeElement(number, block, ordinal=ordinal)
    if block.kind == "table":
        return TableElement(number, block)
    return TextElement(number, block, draft=draft)


def _rows(element: Element, width: int) -> list[Line]:
    if isinstance(element, (TextElement, CodeElement, TableElement)):
        return element.layout(width)
    return []


def plain_lines(text: str, width: int, number: int = 0) -> list[Line]:
    """Rows of text without markup."""
    return TextElement(number, Block("plain", text)).layout(width)
