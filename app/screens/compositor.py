"""Paints a part of the screen by asking only the widgets that are seen there.

Textual's own compositor renders, for a spinner at the top and a number at the bottom, every line of
every widget in between.
"""

from collections.abc import Iterable
from typing import Any

from textual._compositor import ChopsUpdate, Compositor
from textual.geometry import Region
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget


def paint_dirty_rows_only(screen: Screen[Any]) -> None:
    """Give a screen that is not shown yet this compositor."""
    screen._compositor = DirtyCompositor()


class DirtyCompositor(Compositor):
    """What a partial update paints is the same; what it renders are the dirty rows in front."""

    _partial: tuple[Region, ...] = ()
    """The regions of the update that is being rendered; none while everything is."""

    def render_partial_update(self) -> ChopsUpdate | None:
        """Render what is dirty."""
        screen = self.size.region
        cut = (region.intersection(screen) for region in self._dirty_regions)
        self._partial = tuple(region for region in cut if region)
        if not self._partial:
            self._dirty_regions.clear()
            return None
        try:
            return super().render_partial_update()
        finally:
            self._partial = ()

    def _get_renders(self, crop: Region | None = None) -> Iterable[tuple[Region, Region, list[Strip]]]:
        return self._dirty_renders() if self._partial else super()._get_renders(crop)

    def _dirty_renders(self) -> Iterable[tuple[Region, Region, list[Strip]]]:
        """Yield (region, clip of the rendered rows, their strips), front to back."""
        rows = self._dirty_rows()
        for widget, (region, clip) in self.visible_widgets.items():
            if widget in rows:
                first, end = rows[widget]
                shown = region.intersection(clip)
                part = Region(shown.x, first, shown.width, end - first)
                yield region, part, widget.render_lines(part.translate(-region.offset))

    def _dirty_rows(self) -> dict[Widget, tuple[int, int]]:
        """Return the screen rows [first, end) of each widget that dirty regions show."""
        rows: dict[Widget, tuple[int, int]] = {}
        for dirty in self._partial:
            for widget, (region, clip) in self.visible_widgets.items():
                shown = region.intersection(clip)
                part = dirty.intersection(shown)
                if not part:
                    continue
                first, end = rows.get(widget, (part.y, part.bottom))
                rows[widget] = min(first, part.y), max(end, part.bottom)
                if part == dirty:
                    break
        return rows
