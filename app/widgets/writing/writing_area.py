"""A text area that shows what is pasted into it without letting it steer the terminal."""

from rich.text import Text
from textual.timer import Timer
from textual.widgets import TextArea

from app.terminal.controls import masked

_REST_SECONDS = 10.0
"""Without a key for so long the cursor stands still: blinking is most of what an idle screen costs."""


class WritingArea(TextArea):
    """Keeps every character, and shows those that could steer a terminal as visible ones."""

    _resting = False
    _rest_timer: Timer | None = None

    def on_mount(self) -> None:
        """Begin to wait for nothing to happen."""
        self._rest_timer = self.set_interval(_REST_SECONDS, self.rest)

    def rest(self) -> None:
        """Let the cursor stand still until the next key."""
        if self._rest_timer is not None:
            self._rest_timer.pause()
        self._resting = self.cursor_blink
        self.cursor_blink = False

    def on_text_area_selection_changed(self) -> None:
        """Blink again: somebody writes."""
        if self._rest_timer is not None:
            self._rest_timer.reset()
            self._rest_timer.resume()
        if self._resting:
            self._resting = False
            self.cursor_blink = True

    def get_line(self, line_index: int) -> Text:
        """Return a line as it is drawn."""
        line = super().get_line(line_index)
        if not line.plain.isprintable():
            line.plain = masked(line.plain)
        return line
