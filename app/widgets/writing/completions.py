"""The list over the composer of what a word that is being written may become."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from textual import events
from textual.message import Message

from app.widgets.lines import LineWidget, Row, fit

_MOST_ROWS = 8
_MOST_NAME = 40


@dataclass(frozen=True, slots=True)
class Completion:
    """One row; `value` is what its maker knows it by."""

    name: str
    help: str
    value: object


class Completions(LineWidget):
    """Shows completions for one state of the text, and which of them is highlighted."""

    class Picked(Message):
        """A row was clicked."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._choices: Sequence[Completion] = ()
        self._at = self._first = 0
        self._hint = ""
        self.made_for: object = None
        """The state of the text that these are completions of."""

    @property
    def chosen(self) -> Completion | None:
        """The highlighted row; None where nothing is shown."""
        return self._choices[self._at] if self._choices else None

    def show(self, choices: Sequence[Completion], made_for: object, hint: str, above: int) -> None:
        """Show completions over the lowest `above` lines of the screen; none hides the list.

        hint: what the keys do here.
        """
        same = [choice.name for choice in choices] == [choice.name for choice in self._choices]
        if not same:
            self._at = self._first = 0
        self._choices, self.made_for, self._hint = choices, made_for, hint
        self.styles.margin = (0, 0, above, 0)
        self.set_class(bool(choices), "-shown")
        self._draw()

    def hide(self) -> None:
        """Show nothing."""
        if self._choices:
            self.show((), None, "", 0)

    def dismiss(self) -> None:
        """Show nothing until the text changes."""
        made_for = self.made_for
        self.hide()
        self.made_for = made_for

    def move(self, step: int) -> None:
        """Highlight another row, round the ends."""
        self._at = (self._at + step) % max(1, len(self._choices))
        self._first = min(max(self._first, self._at - _MOST_ROWS + 1), self._at)
        self._draw()

    def on_click(self, event: events.Click) -> None:
        """Choose a row."""
        row = self._first + event.y
        if event.y < _MOST_ROWS and row < len(self._choices):
            self._at = row
            self._draw()
            self.post_message(self.Picked())

    def on_mouse_scroll_down(self) -> None:
        """Highlight the next row."""
        self.move(1)

    def on_mouse_scroll_up(self) -> None:
        """Highlight the row before."""
        self.move(-1)

    def on_resize(self) -> None:
        """Use the width."""
        self._draw()

    def _draw(self) -> None:
        width = self.size.width
        shown = self._choices[self._first : self._first + _MOST_ROWS]
        names = min(_MOST_NAME, max((cell_len(choice.name) for choice in shown), default=0))
        rows: list[Row] = []
        for index, choice in enumerate(shown, self._first):
            here = index == self._at
            mark, style = ("❯ ", "accent active") if here else ("  ", "text")
            help = fit(choice.help, max(0, width - names - 4))
            rows.append(((mark, style), (fit(choice.name, names), style), ("  " + help, "dim")))
        if rows:
            more = f"{self._at + 1} of {len(self._choices)} · " if len(self._choices) > _MOST_ROWS else ""
            rows.append(((fit(f"  {more}{self._hint}", width), "faint"),))
        self.set_rows(rows)
