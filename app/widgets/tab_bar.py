"""The line of tabs at the top: one widget that draws one line."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from textual import events
from textual.message import Message

from app.chat.events import TabState
from app.widgets.lines import LineWidget, Row, Span, fit
from app.widgets.states import LOOKS
from app.widgets.words import words

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_QUARTERS = "○◔◑◕●"
_LONGEST, _SHORTEST = 24, 8
_CLOSE, _NEW = "×", " + "
_TIPS = {"close": "Close chat", "new": "New chat", "step": "More tabs"}
"""What a click does that goes to no tab."""


@dataclass(frozen=True, slots=True)
class TabItem:
    """One tab as the bar shows it; `fraction` is how much of the prompt is read."""

    id: str
    title: str
    state: TabState = TabState.IDLE
    unread: bool = False
    fraction: float = 0.0


def glyph(item: TabItem, frame: int) -> Span:
    """Return a tab's state as one styled cell; `frame` counts the spinner on."""
    look = LOOKS[item.state]
    if item.state is TabState.GENERATING:
        return SPINNER[frame % len(SPINNER)], look.style
    if item.state is TabState.READING:
        return _QUARTERS[min(4, int(item.fraction * 4))], look.style
    if item.unread and item.state is TabState.IDLE:
        return "●", "unread"
    return look.glyph, look.style


@dataclass(frozen=True, slots=True)
class _Hit:
    """Cells [start, end) of the line and what a click there means."""

    start: int
    end: int
    action: str
    tab: str = ""


class TabBar(LineWidget):
    """Shows the tabs, scrolls so that the active one is visible, and reports clicks."""

    class Chosen(Message):
        """The reader clicked a tab."""

        def __init__(self, tab_id: str) -> None:
            super().__init__()
            self.tab_id = tab_id

    class CloseClicked(Chosen):
        """The reader clicked a tab's × or clicked it with the middle button."""

    class NewClicked(Message):
        """The reader clicked +."""

    class Stepped(Message):
        """The reader turned the wheel over the bar; `step` is -1 or 1."""

        def __init__(self, step: int) -> None:
            super().__init__()
            self.step = step

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._items: Sequence[TabItem] = ()
        self._active = ""
        self._frame = 0
        self._first = 0
        self._hits: list[_Hit] = []

    def show(self, items: Sequence[TabItem], active: str, frame: int = 0) -> None:
        """Draw these tabs."""
        self._items, self._active, self._frame = items, active, frame
        self._draw()

    def on_resize(self) -> None:
        """Lay the tabs out for the new width."""
        self._draw()

    def on_click(self, event: events.Click) -> None:
        """Report what was clicked."""
        hit = self._hit_at(event.x)
        if hit is None:
            return
        if hit.action == "new":
            self.post_message(self.NewClicked())
        elif hit.action == "step":
            self.post_message(self.Stepped(int(hit.tab)))
        elif hit.action == "close" or event.button == 2:
            self.post_message(self.CloseClicked(hit.tab))
        else:
            self.post_message(self.Chosen(hit.tab))

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Say the whole title of the tab under the mouse, or what a click there does."""
        hit = self._hit_at(event.x)
        text = _TIPS.get(hit.action, "") if hit is not None else ""
        item = next((item for item in self._items if hit is not None and item.id == hit.tab), None)
        if item is not None and hit is not None and hit.action == "choose":
            text = f"{item.title} · {LOOKS[item.state].word}"
        self.tooltip = words(text) if text else None

    def on_mouse_scroll_up(self) -> None:
        """One tab left."""
        self.post_message(self.Stepped(-1))

    def on_mouse_scroll_down(self) -> None:
        """One tab right."""
        self.post_message(self.Stepped(1))

    def _hit_at(self, column: int) -> _Hit | None:
        return next((hit for hit in self._hits if hit.start <= column < hit.end), None)

    def _draw(self) -> None:
        width = self.size.width
        if not width or not self._items:
            return
        shown, title_width = self._window(width)
        spans: list[Span] = []
        self._hits = []
        position = 0

        def add(span_list: Row, action: str, tab: str = "") -> None:
            nonlocal position
            size = sum(cell_len(text) for text, _ in span_list)
            spans.extend(span_list)
            self._hits.append(_Hit(position, position + size, action, tab))
            position += size

        if shown.start > 0:
            add((("‹ ", "dim"),), "step", "-1")
        for item in self._items[shown.start : shown.stop]:
            active = item.id == self._active
            add(self._tab(item, title_width, active), "choose", item.id)
            add(((f"{_CLOSE} ", "faint active" if active else "faint"),), "close", item.id)
        if shown.stop < len(self._items):
            add(((f" ›{len(self._items) - shown.stop}", "dim"),), "step", "1")
        add(((_NEW, "accent"),), "new")
        self.set_rows([tuple(spans)])

    def _tab(self, item: TabItem, title_width: int, active: bool) -> Row:
        mark, style = glyph(item, self._frame)
        title = fit(item.title, min(title_width, max(_SHORTEST, cell_len(item.title))))
        if active:
            return (("▎", "primary active"), (f"{mark} ", f"{style} active"), (f"{title} ", "strong active"))
        return ((" ", ""), (f"{mark} ", style), (f"{title} ", "text" if item.unread else "dim"))

    def _window(self, width: int) -> tuple[range, int]:
        """Return which tabs fit and how wide their titles may be."""
        room = width - len(_NEW) - 6
        count = len(self._items)
        title_width = max(_SHORTEST, min(_LONGEST, room // count - 6))
        sizes = [min(title_width, max(_SHORTEST, cell_len(item.title))) + 6 for item in self._items]
        active = next((i for i, item in enumerate(self._items) if item.id == self._active), 0)
        first = min(self._first, active)
        while sum(sizes[first : active + 1]) > room and first < active:
            first += 1
        stop, used = first, 0
        while stop < count and used + sizes[stop] <= room:
            used += sizes[stop]
            stop += 1
        while first > 0 and used + sizes[first - 1] <= room:
            first -= 1
            used += sizes[first]
        self._first = first
        return range(first, max(stop, active + 1)), title_width
