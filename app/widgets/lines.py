"""A widget that draws rows of styled spans itself and repaints only the rows that changed.

A span is `(text, style)`; a style is a name of `STYLES`, whose colours stand in lines.tcss, and may be
followed by a blank and the name of another background. One such widget does the work of a hundred small
ones, at the cost of one.
"""

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from app.terminal.controls import clean

Span = tuple[str, str]
Row = tuple[Span, ...]

STYLES = (
    "text",
    "dim",
    "faint",
    "strong",
    "accent",
    "primary",
    "streaming",
    "reading",
    "queued",
    "unread",
    "error",
    "warning",
    "used",
    "shared",
    "cached",
    "free",
    "spark",
    "active",
)
FULL, ELLIPSIS = "━", "…"


class LineWidget(Widget, can_focus=False):
    """Base of the tab bar, the live panel and the status lines. Its text cannot be selected."""

    COMPONENT_CLASSES: ClassVar = {f"line--{name}" for name in STYLES}
    ALLOW_SELECT = False

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._rows: tuple[Row, ...] = ()
        self._cached: dict[str, Style] = {}

    def set_rows(self, rows: Sequence[Row]) -> None:
        """Draw these rows; a row equal to the one that is there costs nothing."""
        old, self._rows = self._rows, tuple(rows)
        if len(old) != len(self._rows):
            self.refresh(layout=self.styles.is_auto_height)
            return
        changed = [
            Region(0, y, self.size.width, 1)
            for y, (before, after) in enumerate(zip(old, self._rows, strict=True))
            if before != after
        ]
        if changed:
            self.refresh(*changed)

    def get_content_height(self, *_: object) -> int:
        """One line a row, whatever the width."""
        return len(self._rows)

    def render_line(self, y: int) -> Strip:
        """Draw row `y`."""
        width = self.size.width
        base = self._style("")
        if y >= len(self._rows):
            return Strip.blank(width, base)
        segments = [Segment(clean(text), self._style(style)) for text, style in self._rows[y] if text]
        return Strip(segments).adjust_cell_length(width, base)

    def notify_style_update(self) -> None:
        """Forget colours that a theme or a class has changed."""
        self._cached.clear()
        super().notify_style_update()

    def _style(self, names: str) -> Style:
        """Colours of the first name, on the background of the second; computing them is slow."""
        style = self._cached.get(names)
        if style is None:
            style = self._cached[names] = self._compute_style(names)
        return style

    def _compute_style(self, names: str) -> Style:
        if not names:
            return self.rich_style
        name, _, ground = names.partition(" ")
        style = self.get_component_rich_style(f"line--{name}")
        if ground:
            style += Style(bgcolor=self.get_component_rich_style(f"line--{ground}").bgcolor)
        return style


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Cut or pad text to exactly `width` cells; control characters and line ends become blanks."""
    if not text.isprintable():
        text = "".join(char if char.isprintable() else " " for char in text)
    if width <= 0:
        return ""
    if cell_len(text) > width:
        cut = set_cell_size(text, width - 1) + ELLIPSIS
        return " " * (width - cell_len(cut)) + cut
    padding = " " * (width - cell_len(text))
    return padding + text if right else text + padding


def pair(left: Row, right: Row, width: int) -> Row:
    """Put spans at both ends of a row of `width` cells."""
    gap = width - row_width(left) - row_width(right)
    return (*left, (" " * max(1, gap), ""), *right)


def key_row(keys: Sequence[tuple[str, str]], last: tuple[str, str], width: int) -> Row:
    """Name keys and what they do, as many as fit; the last one stands at the end of the row."""
    end: Row = ((f"{last[0]} ", "accent"), (f"{last[1]} ", "dim"))
    fitting = list(keys)
    while fitting and sum(len(key) + len(what) + 3 for key, what in fitting) > width - row_width(end) - 1:
        fitting.pop()
    spans = [span for key, what in fitting for span in ((f" {key} ", "accent"), (f"{what} ", "dim"))]
    return pair(tuple(spans), end, width)


def row_width(row: Row) -> int:
    """Return a row's width in cells."""
    return sum(cell_len(text) for text, _ in row)


def bar(width: int, parts: Sequence[tuple[float, str]], rest: str = "free") -> Row:
    """Draw parts of one whole (fractions that add up to at most 1) as a bar of `width` cells."""
    spans: list[Span] = []
    left = width
    for fraction, style in parts:
        cells = min(left, round(fraction * width) or (1 if fraction > 0 else 0))
        if cells > 0:
            spans.append((FULL * cells, style))
            left -= cells
    if left > 0:
        spans.append((FULL * left, rest))
    return tuple(spans)
