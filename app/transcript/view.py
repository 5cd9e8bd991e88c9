"""The transcript: a view of one conversation path that draws rows, not widgets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Offset, Region, Size
from textual.message import Message
from textual.selection import Selection
from textual.strip import Strip

from app.markdown.code import spend
from app.markdown.text import cells
from app.transcript.column import Column, Place, Shown
from app.transcript.message import MessageRows, MessageView
from app.transcript.paint import GUTTER, highlight, paint, with_chip
from app.transcript.palette import Palette
from app.transcript.scrolling import TallView
from app.transcript.style import COMPONENTS, CSS

__all__ = ["MessageView", "Transcript"]

MAX_TEXT_WIDTH = 100
# A frame may cost 18 % of the time until the next.
SLOWEST_FRAME_SECONDS = 0.5
BUSY_SHARE = 0.18
POLISH_SECONDS = 0.004
# What is revealed has some rows before it.
_ROWS_ABOVE = 3


class Transcript(TallView):
    """Shows messages, streams text into them and follows the end unless the reader scrolled away.

    Only messages near the reading position are laid out. The reading position is a place in the source
    text: new text, another width, collapsing or completion never move it.
    """

    DEFAULT_CSS = CSS
    COMPONENT_CLASSES: ClassVar[set[str]] = set(COMPONENTS)
    ALLOW_SELECT = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("shift+up", "scroll_up", "Scroll up", show=False),
        Binding("shift+down", "scroll_down", "Scroll down", show=False),
        Binding("end", "jump_to_end", "Follow the end", show=False),
    ]

    class CopyRequested(Message):
        """The reader asked to copy `text`."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, *, id: str | None = None, classes: str | None = None, name: str | None = None) -> None:
        super().__init__(id=id, classes=classes, name=name)
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

    # what the screens call

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

    def show(self, messages: Sequence[MessageView], place: Place | None = None) -> None:
        """Replace everything by `messages`, at a reading position or at the end, which is followed then."""
        self._dirty.clear()
        self._polishing = None
        self._column.replace([MessageRows(message) for message in messages])
        self._go_to(place if place is not None and self._column.holds(place) else None)

    def _go_to(self, place: Place | None) -> None:
        self.follow = place is None
        self._once_sized = None if self._column.width else partial(self._go_to, place)
        self._arrange(place)

    def reveal(self, message_id: str, words: Sequence[str]) -> None:
        """Bring the first of the words in a message into view, marked as what is selected is."""
        if not self._column.width:
            self._once_sized = partial(self.reveal, message_id, words)
            return
        place, (start, end) = self._column.find(message_id, words)
        self._go_to(place)
        row = self._column.row(place)
        self._go_to(self._column.place(max(0, row - _ROWS_ABOVE)))
        y = self._column.row(place) - self._origin
        marked = Selection(Offset(GUTTER + start, y), Offset(GUTTER + end, y))
        self.screen.selections = {self: marked} if end else {}

    def begin(self, message: MessageView) -> None:
        """Append a message. One by the reader brings the end back into view."""
        place = self._place()
        item = MessageRows(message)
        self._column.append(item)
        if message.role == "user":
            self.follow = True
            place = None
        elif place is not None and self._column.width:
            item.layout(self._column.width)
            self._new_lines += len(item.rows)
        self._arrange(place)

    def append_text(self, message_id: str, text: str, *, reasoning: bool = False) -> None:
        """Append streamed text to a message; it is drawn with the next frame."""
        item = self._column.item(message_id)
        item.append(text, reasoning)
        self._dirty[message_id] = item
        if not self._flush_due and self._column.width:
            self._flush_due = True
            wait = self._last_flush + self.frame_seconds - time.monotonic()
            if wait > 0.001:
                self.set_timer(wait, self._flush)
            else:
                self.call_later(self._flush)

    def finish(self, message_id: str, status: str, footer: str) -> None:
        """End a message's stream with all of its text drawn."""
        item = self._column.item(message_id)
        item.status, item.footer = status, footer
        self._dirty[message_id] = item
        self._draw_dirty()

    def remove_from(self, message_id: str) -> None:
        """Remove a message and all after it."""
        place = self._place()
        number = self._column.number(message_id)
        for item in self._column.items[number:]:
            self._dirty.pop(item.id, None)
        self._column.replace(self._column.items[:number])
        if place is not None and place.message_id not in [item.id for item in self._column.items]:
            self.follow, place = True, None
        self._arrange(place)

    def code_blocks(self, message_id: str) -> list[str]:
        """Return the contents of a message's code blocks."""
        return self._column.item(message_id).code_blocks()

    def jump_to_end(self) -> None:
        """Show the end and follow it again."""
        self.follow = True
        self._arrange(None)

    def toggle_reasoning(self, message_id: str) -> None:
        """Expand or collapse the reasoning of a message."""
        place = self._place()
        item = self._column.item(message_id)
        item.reasoning.expanded = not item.reasoning.expanded
        if item.width:
            item.layout(self._column.width)
        self._arrange(place)

    @property
    def frame_seconds(self) -> float:
        """Time between two frames, by what painting one costs.

        How often text comes is the pump's affair. This is for large screens, where a frame costs more than
        the pump's pace allows: slowing the pump instead would hold back the text of every other tab too.
        """
        return min(SLOWEST_FRAME_SECONDS, self._frame_cost / BUSY_SHARE)

    # keys and mouse

    def action_jump_to_end(self) -> None:
        """Show the end and follow it again."""
        self.jump_to_end()

    def action_toggle_reasoning(self) -> None:
        """Expand or collapse the reasoning nearest to the end of what is in view."""
        bottom = self._column.at(min(self._column.height, round(self.scroll_y) + self._view_height) - 1)
        if bottom is None:
            return
        number = self._column.number(bottom[0].id)
        thinking = [item for item in self._column.items[: number + 1] if item.reasoning.present]
        if thinking:
            self.toggle_reasoning(thinking[-1].id)

    def on_click(self, event: events.Click) -> None:
        """Act on the chip, on a reasoning line, on the copy label of a code block."""
        offset = event.get_content_offset(self)
        if offset is None or self.text_selection is not None:
            return
        start, end = self._chip_span
        if offset.y == self._view_height - 1 and start <= offset.x < end:
            self.jump_to_end()
            return
        found = self._column.line(round(self.scroll_y) + offset.y)
        if found is None or not found[1].action:
            return
        item, line = found
        if line.action == "reasoning":
            self.toggle_reasoning(item.id)
        elif offset.x >= GUTTER + cells(line.text) - 7:
            self.post_message(self.CopyRequested(item.code_at(int(line.action.removeprefix("copy:")))))

    # frames

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
            self.set_timer(POLISH_SECONDS * 6, self._polish)

    # the reading position

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

    def on_resize(self) -> None:
        """Wrap to the new width around the reading position."""
        place = self._place() if self._column.width else None
        self._view_width, self._view_height = self.scrollable_content_region.size
        self._column.width = max(8, min(MAX_TEXT_WIDTH, self._view_width - GUTTER - 1))
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
        found = self._column.line(row)
        if found is None:
            strip = Strip.blank(width, base)
        else:
            strip = paint(*found, palette, self._column.width)
            selection = self.text_selection
            if selection is not None:
                style = self.screen.get_component_rich_style("screen--selection")
                strip = highlight(strip, selection.get_span(row - self._origin), style)
            strip = strip.crop_extend(0, width, base).apply_offsets(0, row - self._origin)
        if y == self._view_height - 1 and not self._follow:
            strip, self._chip_span = with_chip(strip, self._new_lines, width, palette)
        return strip

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
        return self._column.selected(selection, self._origin, GUTTER), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        """Draw the selection."""
        del selection
        self.refresh()
