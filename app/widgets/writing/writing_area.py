"""A text area that shows what is pasted into it without letting it steer the terminal."""

from rich.text import Text
from textual.widgets import TextArea

from app.terminal.controls import masked


class WritingArea(TextArea):
    """Keeps every character, and shows those that could steer a terminal as visible ones."""

    def get_line(self, line_index: int) -> Text:
        """Return a line as it is drawn."""
        line = super().get_line(line_index)
        if not line.plain.isprintable():
            line.plain = masked(line.plain)
        return line
