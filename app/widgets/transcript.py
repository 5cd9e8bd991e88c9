"""The transcript: a view of one conversation path."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from app.widgets.message_view import MessageView

__all__ = ["MessageView", "Transcript"]

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Transcript(VerticalScroll):
    """Shows messages and streams text into the last ones."""

    DEFAULT_CSS = "Transcript Static { height: auto; margin: 0 1 1 1; }"

    class CopyRequested(Message):
        """The reader asked to copy `text`."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class FollowChanged(Message):
        """The transcript began or stopped following its end."""

        def __init__(self, follow: bool) -> None:
            super().__init__()
            self.follow = follow

    def __init__(self, *, id: str | None = None, classes: str | None = None, name: str | None = None) -> None:
        super().__init__(id=id, classes=classes, name=name)
        self._views: dict[str, MessageView] = {}
        self._widgets: dict[str, Static] = {}
        self.follow = True

    def show(self, messages: Sequence[MessageView]) -> None:
        """Replace everything by `messages`, following the end."""
        self._views.clear()
        self._widgets.clear()
        self.remove_children()
        for message in messages:
            self.begin(message)

    def begin(self, message: MessageView) -> None:
        """Append a message."""
        self._views[message.id] = message
        widget = self._widgets[message.id] = Static(self._content(message))
        self.mount(widget)
        self.anchor()

    def append_text(self, message_id: str, text: str, *, reasoning: bool = False) -> None:
        """Append streamed text to a message."""
        view = self._views[message_id]
        field = "reasoning" if reasoning else "text"
        self._update(replace(view, **{field: getattr(view, field) + text}))

    def finish(self, message_id: str, status: str, footer: str) -> None:
        """End a message's stream."""
        self._update(replace(self._views[message_id], status=status, footer=footer))

    def remove_from(self, message_id: str) -> None:
        """Remove a message and all after it."""
        ids = list(self._views)
        for key in ids[ids.index(message_id) :]:
            del self._views[key]
            self._widgets.pop(key).remove()

    def text_of(self, message_id: str) -> str:
        """Return a message's source text."""
        return self._views[message_id].text

    def last_answer(self) -> str:
        """Return the source text of the last assistant message, or an empty string."""
        return next((view.text for view in reversed(self._views.values()) if view.role == "assistant"), "")

    def code_blocks(self, message_id: str) -> list[str]:
        """Return the contents of a message's fenced code blocks."""
        return re.findall(r"^```[^\n]*\n(.*?)^```", self.text_of(message_id), re.S | re.M)

    def jump_to_end(self) -> None:
        """Scroll to the end and follow it again."""
        self.follow = True
        self.scroll_end(animate=False)

    def action_toggle_reasoning(self) -> None:
        """Expand or collapse the reasoning of the last message that has one."""

    def _update(self, view: MessageView) -> None:
        self._views[view.id] = view
        self._widgets[view.id].update(self._content(view))

    def _content(self, view: MessageView) -> Content:
        text = f"{view.title or view.role}\n{view.text}\n{view.footer}"
        return Content(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", text))
