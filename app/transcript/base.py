"""What every part of the transcript stands on: its rows, the reading position, frames and drawing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from textual.geometry import Region, Size
from textual.selection import Selection
from textual.strip import Strip

from app.markdown.code import spend
from app.terminal.later import later
from app.transcript.column import Column, Place, Shown
from app.transcript.message import MessageRows
from app.transcript.paint import GUTTER, Mark, highlight, mark, paint, with_chip
from app.transcript.palette import Palette
from app.transcript.scrolling import TallView

TEXT_WIDTH = 100
"""Most columns of text where nobody says how many."""
# A frame may cost 18 % of the time until the next.
SLOWEST_FRAME_SECONDS = 0.5
BUSY_SHARE = 0.18
POLISH_SECONDS = 0.004


class TranscriptBase(TallView):
    """Draws rows near the reading position, follows the end, and lays streamed text out frame by frame.

    The reading position is a place in the source text: new text, another width, collapsing or
    completion never move it.
    """

    ALLOW_SELECT = True

    def __init__(
        self,
        *,
        text_width: int = TEXT_WIDTH,
        id: str | None = None,
        classes: str | None = None,
        name: str | None = None,
    ) -> None:
        """text_width: the most columns of text; a wider view has it in the middle."""
        super().__init__(id=id, classes=classes, name=name)
        self._text_width = text_width
        self._column = Column()
        self._shown = Shown()
        self._follow = True
        self._placing = False
        self._new_lines = 0
        self._origin = 0
        self._palette: Palette | None = None
        self._generation = 0
        self._dirty: dict[str, MessageRows] = {}
        self._flush_due = False
        self._last_flush = 0.0
        self._frame_cost = 0.0
        self._polishing: Iterator[None] | None = None
        self._polish_due = False
        self._chip_span = (0, 0)
        self._once_sized: Callable[[], None] | None = None
        """What waits for the first size, before which nothing can be laid out."""
        self._view_width = 0
        self._view_height = 0
        self._left = GUTTER
        """Cells left of the text: the gutter, and on wide screens a margin before it."""

    @property
    def follow(self) -> bool:
        """Whether the end stays in view as text arrives."""
        return self._follow

    @follow.setter
    def follow(self, value: bool) -> None:
        if value:
            self._new_lines = 0
        self._follow = value

    @property
    def place(self) -> Place | None:
        """The reading position, None while the end is followed."""
        return self._place() if self._column.width else None

    @property
    def frame_seconds(self) -> float:
        """Time between two frames, by what painting one costs.

        How often text comes is the pump's affair. This is for large screens, where a frame costs more than
        the pump's pace allows: slowing the pump instead would hold back the text of every other tab too.
        """
        return min(SLOWEST_FRAME_SECONDS, self._frame_cost / BUSY_SHARE)

    # frames

    def _draw_soon(self, item: MessageRows) -> None:
        """Draw what has come of a message with the next frame."""
        self._dirty[item.id] = item
        if not self._flush_due and self._column.width:
            self._flush_due = True
            wait = self._last_flush + self.frame_seconds - time.monotonic()
            if wait > 0.001:
                later(self, wait, self._flush)
            else:
                self.call_later(self._flush)

    def _flush(self) -> None:
        """Draw what arrived since the last frame."""
        self._flush_due = False
        self._last_flush = time.monotonic()
        started = time.thread_time()
        self._draw_dirty()
        self.call_after_refresh(self._observe, started)

    def _observe(self, started: float) -> None:
        cost = time.thread_time() - started
        self._frame_cost += (cost - self._frame_cost) * 0.3

    def _draw_dirty(self) -> None:
        if not self._column.width:
            return
        dirty, self._dirty = self._dirty, {}
        place = self._place()
        before = sum(len(item.rows) for item in dirty.values())
        for item in dirty.values():
            item.layout(self._column.width)
        if place is not None:
            self._new_lines += max(0, sum(len(item.rows) for item in dirty.values()) - before)
        self._arrange(place)

    def _polish(self) -> None:
        """Spend a little time on the final colours of code that was closed."""
        self._polish_due = False
        if self._polishing is None:
            item = next((item for item in reversed(self._column.items) if item.unpolished), None)
            if item is None:
                return
            self._polishing = item.polish()
        if spend(self._polishing, POLISH_SECONDS):
            self._polishing = None
            self.refresh()
        self._polish_later()

    def _polish_later(self) -> None:
        if self._polish_due:
            return
        if self._polishing is not None or any(item.unpolished for item in self._column.items):
            self._polish_due = True
            later(self, POLISH_SECONDS * 6, self._polish)

    # the reading position

    def _go_to(self, place: Place | None) -> None:
        self.follow = place is None
        self._once_sized = None if self._column.width else partial(self._go_to, place)
        self._arrange(place)

    def _place(self) -> Place | None:
        """Return the reading position, None while the end is followed."""
        return None if self._follow else self._column.place(round(self.scroll_y))

    def _arrange(self, place: Place | None) -> None:
        """Lay out what is near and put the view where it belongs: the end, or the place."""
        column, height = self._column, self._view_height
        if not column.width or not height:
            return
        if place is None:
            column.lay_end(height * 2)
            self._set_height(column.height)
            self._scroll_rows(column.height - height)
        else:
            column.lay_around(place, above=height * 2, below=height * 3)
            self._set_height(column.height)
            self._scroll_rows(column.row(place))
        self._polish_later()
        rows = self._shown.changed(column, round(self.scroll_y), height)
        if rows or not self._follow:
            chip = [] if self._follow else [height - 1]
            self.refresh(*(Region(0, y, self._view_width, 1) for y in rows + chip))

    def _set_height(self, rows: int) -> None:
        size = Size(self._view_width, rows)
        if size != self.virtual_size:
            self._placing = True
            self.set_virtual_size(size)
            self._placing = False

    def _scroll_rows(self, row: int) -> None:
        self._placing = True
        before = round(self.scroll_y)
        self.scroll_target_y = self.scroll_y = max(0, row)
        if not self._follow:
            # Selections count rows from an origin that moves along with the text.
            self._origin += round(self.scroll_y) - before
        self._placing = False

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """The reader scrolled, or text was put in place."""
        super().watch_scroll_y(old_value, new_value)
        if self._placing or round(old_value) == round(new_value):
            return
        self.follow = round(new_value) >= self.max_scroll_y
        self._arrange(self._place())

    def set_text_width(self, columns: int) -> None:
        """Wrap at so many columns at most from now on."""
        if columns != self._text_width:
            self._text_width = columns
            if self._view_width:
                self.on_resize()

    def on_resize(self) -> None:
        """Wrap to the new width around the reading position."""
        place = self._place() if self._column.width else None
        self._view_width, self._view_height = self.scrollable_content_region.size
        room = self._view_width - GUTTER - 1
        self._column.width = max(8, min(self._text_width, room))
        left = GUTTER + max(0, room - self._column.width) // 2
        if left != self._left:
            # What is painted has the margin in it.
            self._left, self._palette = left, None
        self._column.measure()
        if (waiting := self._once_sized) is not None:
            self._once_sized = None
            waiting()
        else:
            self._arrange(place)

    def notify_style_update(self) -> None:
        """Draw with the theme's colours anew."""
        super().notify_style_update()
        self._palette = None

    # drawing

    def render_lines(self, crop: Region) -> list[Strip]:
        """Draw the rows of `crop`.

        Without border, padding or opacity the rows are ready as they are; taking them so keeps what
        they have cached, which halves the cost of a frame.
        """
        if self.styles.gutter or self.opacity < 1 or self.app.native_ansi_color:
            return super().render_lines(crop)
        background = self.background_colors[1]
        filters = self.get_line_filters()
        strips = [self.render_line(y) for y in crop.line_range]
        for line_filter in filters:
            strips = [strip.apply_filter(line_filter, background) for strip in strips]
        if crop.column_span != (0, self._view_width):
            strips = [strip.crop(*crop.column_span) for strip in strips]
        return strips

    def render_line(self, y: int) -> Strip:
        """Draw row `y` of the view."""
        palette = self._colours()
        row = round(self.scroll_y) + y
        width = self._view_width
        base = palette.component("text")
        found = self._column.at(row)
        if found is None or found[1] >= len(found[0].rows):
            strip = Strip.blank(width, base)
        else:
            item, within = found
            strip = paint(item, item.rows[within], palette, self._column.width, self._left - GUTTER)
            for start, end, kind in self._marks(item, within):
                draw = highlight if kind == "hit" else mark
                strip = draw(strip, (start + self._left, end + self._left), palette.component(kind))
            selection = self.text_selection
            if selection is not None:
                style = self.screen.get_component_rich_style("screen--selection")
                strip = highlight(strip, selection.get_span(row - self._origin), style, self._left)
            strip = strip.crop_extend(0, width, base).apply_offsets(0, row - self._origin)
        if y == self._view_height - 1 and not self._follow:
            strip, self._chip_span = with_chip(strip, self._new_lines, width, palette)
        return strip

    def _marks(self, item: MessageRows, within: int) -> Sequence[Mark]:
        """Return what is marked in a message's row besides the selection."""
        del item, within
        return ()

    def _colours(self) -> Palette:
        if self._palette is None:
            self._generation += 1
            self._palette = Palette(self, self._generation)
        return self._palette

    # selection

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """Return the selected text, wrapped rows joined again; all of it is the markdown source."""
        if selection.start is None and selection.end is None:
            return "\n\n".join(item.text for item in self._column.items), "\n"
        return self._column.selected(selection, self._origin, self._left), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        """Draw the selection."""
        del selection
        self.refresh()
