"""A line on which one of many numbers is chosen, by the mouse; its dialog has the keys."""

from bisect import bisect_left
from collections.abc import Sequence

from textual import events
from textual.message import Message

from app.widgets.lines import FULL, LineWidget

THUMB = "●"


class Slider(LineWidget):
    """Shows where a value stands between `steps`, which are evenly far from each other."""

    class Moved(Message):
        """The mouse has chosen a step."""

        def __init__(self, value: int) -> None:
            super().__init__()
            self.value = value

    def __init__(self, steps: Sequence[int], fits: int, *, id: str | None = None) -> None:
        """fits: the largest value that is of use; the line has another colour behind it."""
        super().__init__(id=id)
        self._steps, self._fits, self._value = steps, fits, steps[0]

    def show(self, value: int) -> None:
        """Move the thumb."""
        self._value = value
        self._draw()

    def on_resize(self) -> None:
        """Draw for another width."""
        self._draw()

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Go where the mouse is, and along with it."""
        self.capture_mouse()
        self._choose(event.x)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Follow the mouse while its button is held."""
        if event.button:
            self._choose(event.x)

    def on_mouse_up(self) -> None:
        """Follow it no more."""
        self.release_mouse()

    def _choose(self, x: int) -> None:
        share = min(1.0, max(0.0, x / max(1, self.size.width - 1)))
        self.post_message(self.Moved(self._steps[round(share * (len(self._steps) - 1))]))

    def _cell(self, value: int) -> int:
        """The cell of a value, between those of the steps around it."""
        steps, last = self._steps, len(self._steps) - 1
        at = min(last, bisect_left(steps, value))
        place = float(at)
        if at and value < steps[at]:
            place = at - 1 + (value - steps[at - 1]) / (steps[at] - steps[at - 1])
        return round(place / max(1, last) * (self.size.width - 1))

    def _draw(self) -> None:
        width = self.size.width
        thumb = self._cell(self._value)
        good = width if self._fits >= self._steps[-1] else self._cell(self._fits) + 1
        rest = max(0, min(width, good) - thumb - 1)
        spans = [(FULL * min(thumb, good), "reading"), (FULL * (thumb - min(thumb, good)), "warning")]
        spans += [(THUMB, "accent"), (FULL * rest, "free"), (FULL * (width - thumb - 1 - rest), "warning")]
        self.set_rows([tuple(spans)])
