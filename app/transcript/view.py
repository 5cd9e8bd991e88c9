"""The transcript: a view of one conversation path that draws rows, not widgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from app.markdown.document import CodeBlock
from app.markdown.text import Line, cells
from app.transcript.caret import CaretKeys
from app.transcript.column import Place
from app.transcript.message import MessageRows, MessageView
from app.transcript.style import COMPONENTS, CSS

__all__ = ["MessageView", "Transcript"]


class Transcript(CaretKeys):
    """Shows messages, streams text into them and follows the end unless the reader scrolled away.

    Only messages near the reading position are laid out.
    """

    DEFAULT_CSS = CSS
    COMPONENT_CLASSES: ClassVar[set[str]] = set(COMPONENTS)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("shift+up", "scroll_up", "Scroll up", show=False),
        Binding("shift+down", "scroll_down", "Scroll down", show=False),
        Binding("end", "jump_to_end", "Follow the end", show=False),
    ]

    class LinkAsked(Message, namespace="transcript"):
        """The reader asked to open an address."""

        def __init__(self, address: str) -> None:
            super().__init__()
            self.address = address

    # what the screens call

    def show(self, messages: Sequence[MessageView], place: Place | None = None) -> None:
        """Replace everything by `messages`, at a reading position or at the end, which is followed then."""
        self._dirty.clear()
        self._polishing = None
        self._column.replace([MessageRows(message) for message in messages])
        self._go_to(place if place is not None and self._column.holds(place) else None)
        self._messages_changed()

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
        self._messages_changed()

    def append_text(self, message_id: str, text: str, *, reasoning: bool = False) -> None:
        """Append streamed text to a message; it is drawn with the next frame."""
        item = self._column.item(message_id)
        item.append(text, reasoning)
        self._draw_soon(item)

    def reasoning_cost(self, message_id: str, tokens: int, seconds: float) -> None:
        """Say what the reasoning of a message has cost so far; it is drawn with the text that follows."""
        self._column.item(message_id).reasoning.cost = tokens, seconds

    def finish(self, message_id: str, status: str, footer: str) -> None:
        """End a message's stream with all of its text drawn."""
        item = self._column.item(message_id)
        item.status, item.footer = status, footer
        self._dirty[message_id] = item
        self._draw_dirty()
        self._messages_changed()

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
        self._messages_changed()

    def code_blocks(self, message_id: str) -> list[CodeBlock]:
        """Return a message's code blocks."""
        return self._column.item(message_id).code_blocks()

    def answers_in_view(self) -> list[MessageRows]:
        """Return the answers at or above the end of what is in view, the nearest to it first."""
        bottom = min(self._column.height, round(self.scroll_y) + self._view_height) - 1
        found = self._column.at(bottom)
        items = self._column.items
        above = items[: self._column.number(found[0].id) + 1] if found is not None else items
        return [item for item in reversed(above) if item.role == "assistant"]

    def jump_to_end(self) -> None:
        """Show the end and follow it again."""
        self.follow = True
        self._arrange(None)

    def toggle_reasoning(self, message_id: str) -> None:
        """Expand or collapse the reasoning of a message."""
        item = self._column.item(message_id)
        self._fold(item, expanded=not item.reasoning.expanded)

    # keys and mouse

    def action_jump_to_end(self) -> None:
        """Show the end and follow it again."""
        self.jump_to_end()

    def toggle_nearest_reasoning(self) -> bool:
        """Expand or collapse the reasoning nearest to the end of what is in view; tell if there is any."""
        bottom = self._column.at(min(self._column.height, round(self.scroll_y) + self._view_height) - 1)
        if bottom is None:
            return False
        number = self._column.number(bottom[0].id)
        thinking = [item for item in self._column.items[: number + 1] if item.reasoning.present]
        if thinking:
            self.toggle_reasoning(thinking[-1].id)
        return bool(thinking)

    def on_click(self, event: events.Click) -> None:
        """Act on the chip, on a reasoning line, on the copy label of a code block, with Ctrl on a link."""
        offset = event.get_content_offset(self)
        if offset is None or self.text_selection is not None:
            return
        start, end = self._chip_span
        if offset.y == self._view_height - 1 and start <= offset.x < end:
            self.jump_to_end()
            return
        found = self._column.line(round(self.scroll_y) + offset.y)
        if found is None:
            return
        item, line = found
        if line.action == "reasoning":
            self.toggle_reasoning(item.id)
        elif line.action and offset.x >= self._left + cells(line.text) - 7:
            name, text = item.block_at(int(line.action.removeprefix("copy:")))
            self.post_message(self.CopyRequested(text, name.capitalize()))
        elif (event.ctrl or event.meta) and (address := _link_at(line, offset.x - self._left)):
            self.post_message(self.LinkAsked(address))


def _link_at(line: Line, cell: int) -> str:
    """Return the address of the link that a row shows at a cell, an empty string without a safe one."""
    for run in line.runs:
        width = cells(run.text)
        if 0 <= cell < width:
            return run.look.href
        cell -= width
    return ""
