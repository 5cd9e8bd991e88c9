"""A widget of coloured dots, two in each cell, one above the other."""

from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from app.settings.chat_colors import NAMES

Dots = NDArray[np.uint8]
"""Rows of dots from the top; each is an index of `COLOURS`."""

COLOURS = (
    "none",
    "free",
    "kept",
    "other",
    "shared",
    "cursor",
    "streaming",
    "reading",
    "queued",
    "limit",
    *NAMES,
)
"""Names of component classes, whose colours stand in engine_view.tcss."""
NONE, FREE, KEPT, OTHER, SHARED, CURSOR, WRITING, READING, WAITING, LIMIT, CHAT = range(11)
"""Places in `COLOURS`; the first chat's is the last of these."""
_UPPER = "▀"


class Pixels(Widget):
    """Paints the rows that have changed since they were painted."""

    COMPONENT_CLASSES: ClassVar = {f"dot--{name}" for name in COLOURS}
    ALLOW_SELECT = False

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._dots: Dots = np.zeros((0, 0), np.uint8)
        self._colours: list[Color | None] = []
        self._pairs: dict[tuple[int, int], Style] = {}

    def paint(self, dots: Dots) -> None:
        """Show these dots, two rows for each line of the widget."""
        old, self._dots = self._dots, dots
        if old.shape != dots.shape:
            self.refresh()
            return
        changed = np.flatnonzero((old != dots).any(axis=1))
        lines = sorted({int(row) // 2 for row in changed})
        if lines:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in lines))

    def render_line(self, y: int) -> Strip:
        """Draw two rows of dots."""
        width = self.size.width
        if 2 * y + 1 >= len(self._dots):
            return Strip.blank(width, self.rich_style)
        upper, lower = self._dots[2 * y], self._dots[2 * y + 1]
        starts = np.flatnonzero((upper[1:] != upper[:-1]) | (lower[1:] != lower[:-1])) + 1
        edges = [0, *starts.tolist(), len(upper)]
        segments = []
        for start, end in pairwise(edges):
            pair = int(upper[start]), int(lower[start])
            text = " " if pair[0] == pair[1] else _UPPER
            segments.append(Segment(text * (end - start), self._style(pair)))
        return Strip(segments).adjust_cell_length(width, self.rich_style)

    def notify_style_update(self) -> None:
        """Forget colours that a theme has changed."""
        self._colours, self._pairs = [], {}
        super().notify_style_update()

    def _style(self, pair: tuple[int, int]) -> Style:
        style = self._pairs.get(pair)
        if style is None:
            if not self._colours:
                self._colours = [self.get_component_rich_style(f"dot--{name}").color for name in COLOURS]
                self._colours[NONE] = self.rich_style.bgcolor
            upper, lower = self._colours[pair[0]], self._colours[pair[1]]
            style = self._pairs[pair] = Style(color=upper, bgcolor=lower)
        return style
