"""The map of KV blocks: a dot for each, or for a few, in the colour of the chat that holds it."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from app.screens.engine_view.block_map import BlockMap, DotLayout, lay_out, zoom_steps
from app.screens.engine_view.pixels import CHAT, CURSOR, FREE, KEPT, NONE, OTHER, SHARED, Dots, Pixels
from app.settings.chat_colors import COUNT


class KVMapView(Pixels, can_focus=True):
    """Shows a `BlockMap` and moves a cursor over it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(0, -1)", show=False),
        Binding("right", "move(0, 1)", show=False),
        Binding("up", "move(-1, 0)", show=False),
        Binding("down", "move(1, 0)", show=False),
        Binding("home", "go_to(1)", show=False),
        Binding("end", "go_to(-1)", show=False),
        Binding("n", "next_owner", show=False),
        Binding("plus,equals_sign", "zoom(1)", show=False),
        Binding("minus", "zoom(-1)", show=False),
        Binding("enter", "choose", show=False),
    ]

    class Moved(Message):
        """The cursor stands on other blocks, or a dot stands for another number of them."""

    class Chosen(Message):
        """The reader wants to go to who holds what the cursor stands on."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.blocks: BlockMap | None = None
        self._places: Mapping[int, int] = {}
        self._cursor = 0
        """The block that it stands on; 0: nowhere yet."""
        self._zoom = 0

    def show(self, blocks: BlockMap, places: Mapping[int, int]) -> None:
        """Show a pool's blocks; `places`: which chat a sequence is, from 0."""
        self.blocks, self._places = blocks, places
        if not self._cursor:
            self._cursor = blocks.next_owner(0) or 1
        self._cursor = min(self._cursor, max(1, blocks.size))
        self._draw()

    @property
    def layout_of_dots(self) -> DotLayout:
        """How blocks become dots now."""
        size = self.blocks.size if self.blocks is not None else 0
        return lay_out(size, self.size.width, 2 * self.size.height, self._zoom, max(1, self._cursor))

    @property
    def under_cursor(self) -> tuple[int, int]:
        """The first block that the cursor stands on, and how many there are."""
        size, per_dot = (self.blocks.size if self.blocks else 0), self.layout_of_dots.per_dot
        first = (max(1, self._cursor) - 1) // per_dot * per_dot + 1
        return first, max(0, min(per_dot, size - first + 1))

    def on_resize(self) -> None:
        """Fit the blocks into the new size."""
        self._draw()
        self.post_message(self.Moved())

    def on_focus(self) -> None:
        """Show the cursor."""
        self._draw()

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the upper dot of the cell; a second click goes to the chat."""
        layout = self.layout_of_dots
        rows = (2 * event.y, 2 * event.y + 1)
        blocks = [layout.block_at(row, event.x) for row in rows]
        held = [block for block in blocks if self._owner(block, layout.per_dot) is not None]
        self.action_go_to(held[0] if held else blocks[0])
        if event.chain == 2:
            self.action_choose()

    def action_move(self, rows: int, columns: int) -> None:
        """Move the cursor by dots, inside the map."""
        layout = self.layout_of_dots
        step = (rows * layout.width + columns) * layout.per_dot
        if self.blocks is not None and 1 <= self._cursor + step <= self.blocks.size:
            self.action_go_to(self._cursor + step)

    def action_go_to(self, block: int) -> None:
        """Move the cursor to a block; -1 is the last one."""
        size = self.blocks.size if self.blocks is not None else 1
        self._cursor = size if block < 0 else min(max(1, block), max(1, size))
        self._draw()
        self.post_message(self.Moved())

    def action_next_owner(self) -> None:
        """Move the cursor to where the next chat's blocks begin."""
        first, count = self.under_cursor
        block = self.blocks.next_owner(first + max(0, count - 1)) if self.blocks is not None else None
        if block is not None:
            self.action_go_to(block)

    def action_zoom(self, step: int) -> None:
        """Let a dot stand for half as many blocks, or twice as many."""
        size = self.blocks.size if self.blocks is not None else 0
        most = zoom_steps(size, self.size.width, 2 * self.size.height)
        self._zoom = min(max(0, self._zoom + step), most)
        self._draw()
        self.post_message(self.Moved())

    def action_choose(self) -> None:
        """Go to the chat under the cursor."""
        self.post_message(self.Chosen())

    def _owner(self, block: int, count: int) -> int | None:
        return self.blocks.owner_of(block, count) if self.blocks is not None else None

    def _draw(self) -> None:
        if self.blocks is None or not self.size.width or not self.size.height:
            return
        layout = self.layout_of_dots
        dots = map_dots(self.blocks, layout, self._places)
        row, column = layout.dot_of(self._cursor)
        if self.blocks.size and 0 <= row < len(dots):
            dots[row, column] = CURSOR
        self.paint(dots)


def map_dots(blocks: BlockMap, layout: DotLayout, places: Mapping[int, int]) -> Dots:
    """Colour the dots: a chat's, hatched where another sequence has the blocks too, kept, free or none."""
    owner, shared, used = blocks.dots(layout)
    chats = [places.get(sequence_id) for sequence_id in blocks.sequences]
    # The last entry is that of nobody, whose index is -1.
    colours = np.array([*(OTHER if c is None else CHAT + c % COUNT for c in chats), FREE], np.uint8)
    dots = np.where(owner >= 0, colours[owner], np.where(used, KEPT, FREE)).astype(np.uint8)
    filled = np.full(layout.rows * layout.width, NONE, np.uint8)
    filled[: len(dots)] = dots
    # Every other one, from where blocks begin to be shared: a single one is seen, too.
    place, begins = np.arange(len(dots)), shared & ~np.append(False, shared[:-1])
    since = place - np.maximum.accumulate(np.where(begins, place, 0))
    filled[: len(dots)][shared & (since % 2 == 0)] = SHARED
    return filled.reshape(layout.rows, layout.width)
