"""The line at the bottom: the tab's model and numbers at the left, a few keys at the right."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from textual import events
from textual.message import Message

from app.widgets.lines import LineWidget, Row, Span, fit, pair, row_width
from app.widgets.words import words

_NEARLY_FULL = 0.8
_SHORTEST_NAME = 10


@dataclass(frozen=True, slots=True)
class StatusItem:
    """What the line shows. `context` is (used, most) tokens; `kv` the share of the KV budget in use.

    `unsaved`: something is written that is in no file. `fetching`: which models are being fetched.
    """

    model: str
    quantization: str = ""
    context: tuple[int, int] | None = None
    tok_s: float = 0.0
    kv: float | None = None
    note: str = ""
    unsaved: bool = False
    fetching: str = ""


class StatusLine(LineWidget):
    """Shows the speed, once there is one, and the last key at any width; drops what is least needed first."""

    class HintClicked(Message):
        """The reader clicked the name of a key."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    def __init__(self, hints: Sequence[tuple[str, str]] = (), *, id: str | None = None) -> None:
        """`hints` are (key, title), the one that is needed most last."""
        super().__init__(id=id)
        self._hints = hints
        self._item = StatusItem("")
        self._shown = 0
        """How many hints there is room for."""

    def show(self, item: StatusItem, hints: Sequence[tuple[str, str]]) -> None:
        """Draw this status and the keys that matter now."""
        self._item, self._hints = item, hints
        self._draw()

    def on_click(self, event: events.Click) -> None:
        """Report which key's name was clicked."""
        if (hint := self._hint_at(event.x)) is not None:
            self.post_message(self.HintClicked(hint[0]))

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Say that a key's name under the mouse can be clicked."""
        hint = self._hint_at(event.x)
        self.tooltip = words(f"Click or press {hint[0]}: {hint[1]}") if hint is not None else None

    def _hint_at(self, column: int) -> tuple[str, str] | None:
        end = self.size.width
        # Those that are shown stand at the end of the line.
        for key, title in reversed(self._hints[len(self._hints) - self._shown :]):
            start = end - cell_len(key) - cell_len(title) - 3
            if start <= column < end:
                return key, title
            end = start
        return None

    def on_resize(self) -> None:
        """Lay the line out for the new width."""
        self._draw()

    def _draw(self) -> None:
        width = self.size.width
        if width:
            parts = self._parts()
            item = self._item
            up_to_speed = 1 + sum(map(bool, (item.quantization, item.note, item.fetching, item.tok_s)))
            least = sum(map(cell_len, self._hints[-1])) + 3 if self._hints else 0
            while len(parts) > 2 and row_width(_joined(parts)) > width - 3 - least:
                parts.pop(-1 if len(parts) > up_to_speed else 1)
            left = _joined(parts)
            right = self._hint_spans(width - row_width(left) - 3)
            self.set_rows([pair(left, right, width)])

    @property
    def _name_width(self) -> int:
        return min(cell_len(self._item.model), max(_SHORTEST_NAME, self.size.width // 3))

    def _parts(self) -> list[Row]:
        """The pieces in reading order; `_draw` drops from the end."""
        item = self._item
        unsaved: Row = ((" NOT SAVED ", "error"),) if item.unsaved else ()
        parts: list[Row] = [(*unsaved, (f" {fit(item.model, self._name_width)}", "strong"))]
        if item.quantization:
            parts.append(((item.quantization, "dim"),))
        if item.note:
            parts.append(((item.note, "reading"),))
        if item.fetching:
            parts.append(((item.fetching, "accent"),))
        if item.tok_s:
            parts.append(((f"{item.tok_s:.1f}", "text"), (" tok/s", "dim")))
        if item.context is not None:
            used, most = item.context
            style = "warning" if most and used / most >= _NEARLY_FULL else "text"
            parts.append((("ctx ", "dim"), (f"{used:,}", style), (f"/{most:,}", "dim")))
        if item.kv is not None:
            parts.append(
                (("kv ", "dim"), (f"{item.kv:.0%}", "text" if item.kv < _NEARLY_FULL else "warning"))
            )
        return parts

    def _hint_spans(self, room: int) -> Row:
        spans: list[Span] = []
        self._shown = 0
        for key, title in reversed(self._hints):
            piece: list[Span] = [(f"{key} ", "accent"), (f"{title}  ", "dim")]
            if row_width(tuple(piece + spans)) > room:
                break
            spans = piece + spans
            self._shown += 1
        return tuple(spans)


def _joined(parts: Sequence[Row]) -> Row:
    joined: list[Span] = []
    for part in parts:
        if joined:
            joined.append(("  ", "faint"))
        joined.extend(part)
    return tuple(joined)
