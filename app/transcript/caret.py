"""Selecting by keys: a caret that moves over the rows, and what stands at it to be copied."""

from __future__ import annotations

import re
from collections.abc import Sequence

from textual import events
from textual.geometry import Offset
from textual.message import Message
from textual.selection import Selection

from app.transcript.finding import Finding
from app.transcript.message import FOOTER, MessageRows
from app.transcript.paint import Mark

HINT = "arrows move · Shift selects · Enter copies · b block · m message · a all · Esc ends"
_WORD_ENDS = re.compile(r"\b\w")
_MOVES = frozenset(
    f"{held}{key}"
    for held in ("", "shift+", "ctrl+", "ctrl+shift+")
    for key in ("up", "down", "left", "right", "home", "end", "pageup", "pagedown")
)


class CaretKeys(Finding):
    """While there is a caret, keys move it and select, and letters copy; the mouse goes on as always."""

    _caret: Offset | None = None
    """Where the caret is: a character of a row, as selections count them; None without one."""
    _anchor: Offset | None = None
    """Where the selection began."""

    class CopyRequested(Message, namespace="transcript"):
        """The reader asked to copy `text`; `what` says what it is."""

        def __init__(self, text: str, what: str = "") -> None:
            super().__init__()
            self.text = text
            self.what = what

    class CaretEnded(Message, namespace="transcript"):
        """The reader is done with selecting by keys."""

    def select_by_keys(self) -> bool:
        """Put a caret into what is in view; tell whether there is anything."""
        if not self._column.items or not self._column.width:
            return False
        top = round(self.scroll_y)
        bottom = min(self._column.height, top + self._view_height) - 1
        texts = (row for row in range(bottom, top - 1, -1) if self._text_at(row))
        row = next(texts, top)
        # What is selected is counted in rows, which new text at a followed end would move.
        self._go_to(self._column.place(top))
        self._caret, self._anchor = Offset(0, row - self._origin), None
        self.focus()
        self.refresh()
        return True

    def on_key(self, event: events.Key) -> None:
        """Move the caret, select or copy."""
        if self._caret is None:
            return
        key = event.key
        if key in _MOVES:
            self._move(key.split("+")[-1], word="ctrl" in key, extend="shift" in key)
        elif key == "escape":
            self.end_caret()
        elif key in ("enter", "y", "ctrl+c"):
            self._copy_selected()
        elif key in ("b", "m", "a"):
            {"b": self._copy_block, "m": self._copy_message, "a": self._copy_all}[key]()
        elif not event.is_printable:
            return
        event.stop()
        event.prevent_default()

    def on_blur(self) -> None:
        """The caret stays only where the keys go."""
        self.end_caret()

    def end_caret(self) -> None:
        """Take the caret away; what is selected stays."""
        if self._caret is not None:
            self._caret = self._anchor = None
            self.refresh()
            self.post_message(self.CaretEnded())

    # moving

    def _text_at(self, row: int) -> str:
        found = self._column.line(row)
        return found[1].text if found is not None else ""

    def _move(self, key: str, *, word: bool, extend: bool) -> None:
        caret = self._caret
        assert caret is not None
        if not extend:
            self._anchor = None
        elif self._anchor is None:
            self._anchor = caret
        row, at = caret.y + self._origin, caret.x
        if key in ("left", "right"):
            row, at = self._sideways(row, at, 1 if key == "right" else -1, word=word)
        elif key in ("home", "end"):
            at = 0 if key == "home" else len(self._text_at(row))
            row = row if not word else 0 if key == "home" else self._column.height - 1
        else:
            page = max(1, self._view_height - 2)
            row += {"up": -1, "down": 1, "pageup": -page, "pagedown": page}[key]
        row = max(0, min(self._column.height - 1, row))
        self._put_caret(row, at)

    def _sideways(self, row: int, at: int, step: int, *, word: bool) -> tuple[int, int]:
        """Return the place a character or a word on, in the row before or after where this one ends."""
        text = self._text_at(row)
        at = min(at, len(text))
        if word:
            starts = [match.start() for match in _WORD_ENDS.finditer(text)] + (
                [len(text)] if step > 0 else []
            )
            beyond = [start for start in starts if (start > at if step > 0 else start < at)]
            if beyond:
                return row, min(beyond) if step > 0 else max(beyond)
        elif 0 <= at + step <= len(text):
            return row, at + step
        other = row + step
        if not 0 <= other < self._column.height:
            return row, at
        return other, 0 if step > 0 else len(self._text_at(other))

    def _put_caret(self, row: int, at: int) -> None:
        """Put the caret on a row, scroll to it, and select from where the selection began."""
        y = row - self._origin
        top = round(self.scroll_y)
        if row < top:
            self.scroll_to(y=row, animate=False, immediate=True)
        elif row >= top + self._view_height - 1:
            self.scroll_to(y=row - self._view_height + 2, animate=False, immediate=True)
        self._caret = caret = Offset(at, y)
        anchor = self._anchor
        if anchor is None:
            self.screen.selections = {}
        else:
            start, end = sorted((anchor, caret), key=lambda place: (place.y, place.x))
            shift = Offset(self._left, 0)
            self.screen.selections = {self: Selection(start + shift, end + shift)}
        self.refresh()

    # copying

    def _copy_selected(self) -> None:
        selection = self.text_selection
        found = self.get_selection(selection) if selection is not None else None
        if found is None or not found[0]:
            self._copy_block()
        else:
            self.post_message(self.CopyRequested(found[0], "Selection"))
            self.end_caret()

    def _at_caret(self) -> tuple[MessageRows, int] | None:
        return self._column.at(self._caret.y + self._origin) if self._caret is not None else None

    def _copy_block(self) -> None:
        """Copy the source of the paragraph, code, table or list item at the caret."""
        found = self._at_caret()
        if found is None:
            return
        item, within = found
        element = item.rows[within].mark[0]
        name, text = item.block_at(element) if element < FOOTER else ("", "")
        if text:
            self.post_message(self.CopyRequested(text, name.capitalize()))
            self.end_caret()
        else:
            self._copy_message()

    def _copy_message(self) -> None:
        if (found := self._at_caret()) is not None:
            self.post_message(self.CopyRequested(found[0].text, "Message"))
            self.end_caret()

    def _copy_all(self) -> None:
        self.post_message(self.CopyRequested(self.all_text, "Chat"))
        self.end_caret()

    @property
    def all_text(self) -> str:
        """The source text of all messages that are shown, under the names of their writers."""
        return "\n\n".join(f"{item.name}:\n\n{item.text}" for item in self._column.items if item.text)

    # drawing

    def _marks(self, item: MessageRows, within: int) -> Sequence[Mark]:
        marks = super()._marks(item, within)
        caret = self._caret
        if caret is None or self._column.at(caret.y + self._origin) != (item, within):
            return marks
        at = min(caret.x, len(item.rows[within].text))
        return [*marks, (at, at + 1, "caret")]
