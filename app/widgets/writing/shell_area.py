"""A text area whose keys for words, lines and what was deleted are those of a shell's command line."""

import re
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.document._document import Location

from app.widgets.writing.writing_area import WritingArea

_TO_BLANK = re.compile(r"\S+\s*\Z")
_TO_WORD_START = re.compile(r"[^\W_]+[\W_]*\Z|[\W_]+\Z")
_TO_WORD_END = re.compile(r"[\W_]*[^\W_]+|[\W_]+")


class ShellArea(WritingArea):
    """Keeps the last deletion, to be put back; deletions one after another are one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+w", "rub_out", "Delete to blank", show=False),
        Binding("alt+backspace,ctrl+backspace", "kill_word_left", "Delete word left", show=False),
        Binding("alt+d,alt+delete,ctrl+delete", "kill_word_right", "Delete word right", show=False),
        Binding("ctrl+u", "kill_to_start", "Delete to line start", show=False),
        Binding("ctrl+k", "kill_to_end", "Delete to line end", show=False),
        Binding("ctrl+y", "yank", "Put back", show=False),
        Binding("ctrl+underscore,super+z", "undo", "Undo", show=False),
        Binding("alt+z,ctrl+shift+z", "redo", "Redo", show=False),
        Binding("alt+b,ctrl+left", "word_left", "Word left", show=False),
        Binding("alt+f,ctrl+right", "word_right", "Word right", show=False),
    ]

    _killed = ""
    _killed_at: tuple[Location, int] | None = None
    """Where the cursor stood after the last deletion, and the text's length: another one there adds to it."""

    def action_rub_out(self) -> None:
        """Delete the word before the cursor, back to a blank."""
        self._kill_back(_TO_BLANK)

    def action_kill_word_left(self) -> None:
        """Delete back to the beginning of a word."""
        self._kill_back(_TO_WORD_START)

    def action_kill_word_right(self) -> None:
        """Delete to the end of a word."""
        self._kill(self.cursor_location, self._word_end())

    def action_kill_to_start(self) -> None:
        """Delete to the beginning of the line; there, the line break before it."""
        row, column = self.cursor_location
        self._kill((row, 0) if column else self.get_cursor_left_location(), (row, column))

    def action_kill_to_end(self) -> None:
        """Delete to the end of the line; there, the line break behind it."""
        row, column = self.cursor_location
        length = len(self.document.get_line(row))
        self._kill((row, column), (row, length) if column < length else self.get_cursor_right_location())

    def action_yank(self) -> None:
        """Put back what was deleted last."""
        if self._killed:
            self.replace(self._killed, *self.selection, maintain_selection_offset=False)

    def action_word_left(self) -> None:
        """Go to the beginning of a word."""
        self.move_cursor(self._back_to(_TO_WORD_START))

    def action_word_right(self) -> None:
        """Go to the end of a word."""
        self.move_cursor(self._word_end())

    def _kill_back(self, pattern: re.Pattern[str]) -> None:
        self._kill(self._back_to(pattern), self.cursor_location)

    def _back_to(self, pattern: re.Pattern[str]) -> Location:
        row, column = self.cursor_location
        if not column:
            return self.get_cursor_left_location()
        found = pattern.search(self.document.get_line(row)[:column])
        return row, found.start() if found else 0

    def _word_end(self) -> Location:
        row, column = self.cursor_location
        line = self.document.get_line(row)
        if column == len(line):
            return self.get_cursor_right_location()
        found = _TO_WORD_END.match(line, column)
        return row, found.end() if found else len(line)

    def _kill(self, start: Location, end: Location) -> None:
        """Delete between two places, or what is selected, and keep it."""
        before = self.cursor_location
        if self.selected_text:
            start, end = sorted(self.selection)
        text = self.get_text_range(start, end)
        if not text:
            return
        goes_on = self._killed_at == (before, len(self.text))
        if not goes_on:
            self._killed = text
        elif before == end:
            self._killed = text + self._killed
        else:
            self._killed += text
        self.delete(start, end, maintain_selection_offset=False)
        self._killed_at = self.cursor_location, len(self.text)
