"""Where messages are written: several lines, growing; Enter sends; big pastes fold into chips that open."""

import asyncio
import contextlib
from collections.abc import Sequence

from textual import events
from textual.message import Message

from app.chat.draft import Draft, chip, is_big
from app.widgets.writing_area import WritingArea

_NEWLINE_KEYS = frozenset({"shift+enter", "ctrl+j", "alt+enter", "ctrl+enter"})
_XTERM_NEWLINE_KEYS = frozenset({"shift+\r", "\r", "ctrl+\r"})
"""What Textual makes of `CSI 27;2;13~`, `27;3;13~` and `27;5;13~`, xterm's Enter with another key held."""
_MOST_LINES = 10
_SETTLE_SECONDS = 1.0


class Composer(WritingArea):
    """A text area that sends. It leaves every key of the action registry to the screen."""

    class Submitted(Message):
        """The reader sends this text, chips expanded, in the chat with the id `chat`."""

        def __init__(self, text: str, chat: str) -> None:
            super().__init__()
            self.text = text
            self.chat = chat

    def __init__(self, *, enter_sends: bool = True, id: str | None = None) -> None:
        super().__init__(
            id=id,
            soft_wrap=True,
            tab_behavior="focus",
            compact=True,
            highlight_cursor_line=False,
            placeholder="Write a message",
        )
        self.chat = ""
        """Id of the chat that is written in: when a message arrives another one may be in front."""
        self._enter_sends = enter_sends
        self._pastes: dict[int, str] = {}
        self._past: Sequence[str] = ()
        self._recalled: int | None = None
        self._unsent = Draft()
        self._held: list[events.Key | events.Paste] | None = None

    @property
    def draft(self) -> Draft:
        """What is written now."""
        return Draft(self.text, dict(self._pastes))

    @draft.setter
    def draft(self, draft: Draft) -> None:
        self._pastes = dict(draft.pastes)
        self._recalled = None
        self.load_text(draft.text)
        self.move_cursor(self.document.end)

    @property
    def kept(self) -> Draft:
        """What is to be saved: behind an earlier message that was recalled, what was begun before it."""
        if self._recalled is None:
            return self.draft
        unchanged = self.draft.expanded == self._past[self._recalled]
        return self._unsent if unchanged else self.draft.after(self._unsent.expanded)

    async def settle(self) -> None:
        """Wait until every key pressed before now has done its work."""
        done = asyncio.Event()
        self.call_later(done.set)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), _SETTLE_SECONDS)

    def hold(self) -> None:
        """Keep what is typed from now on for the chat that is about to come to the front."""
        if self._held is None:
            self._held = []

    def let_go(self) -> None:
        """Let what was kept be typed now."""
        held, self._held = self._held or [], None
        for event in held:
            self.post_message(event)

    def set_past(self, texts: Sequence[str]) -> None:
        """Set the messages that the up key goes through, oldest first."""
        recalled = self._recalled
        if recalled is not None and list(texts[recalled : recalled + 1]) != [self._past[recalled]]:
            self.draft = self.kept
        self._past = texts

    def fit_height(self) -> None:
        """Grow and shrink with the text, from one line to ten."""
        self.styles.height = min(_MOST_LINES, max(1, self.wrapped_document.height)) + self.gutter_height

    @property
    def gutter_height(self) -> int:
        """Lines of the border and padding."""
        return self.styles.gutter.height

    def on_mount(self) -> None:
        """Begin at one line."""
        self.fit_height()

    def on_text_area_changed(self) -> None:
        """Follow the text."""
        self.fit_height()

    def on_resize(self) -> None:
        """Follow the width, to which the text is wrapped after this."""
        self.call_later(self.fit_height)

    def on_key(self, event: events.Key) -> None:
        """Send, begin a line or recall; every other key is the text area's."""
        if self._held is not None:
            self._held.append(events.Key(event.key, event.character))
            event.stop()
            event.prevent_default()
            return
        handled = True
        begins_line = event.key in _NEWLINE_KEYS | _XTERM_NEWLINE_KEYS
        if begins_line and not (event.key == "ctrl+j" and not self._enter_sends):
            self.insert("\n")
        elif event.key == ("enter" if self._enter_sends else "ctrl+j"):
            self._enter()
        elif event.key == "up" and self.cursor_at_first_line:
            handled = self._recall(-1)
        elif event.key == "down" and self.cursor_at_last_line:
            handled = self._recall(1)
        else:
            handled = False
        if handled:
            event.stop()
            event.prevent_default()

    def on_paste(self, event: events.Paste) -> None:
        """Put the text in."""
        event.stop()
        event.prevent_default()
        if self._held is not None:
            self._held.append(events.Paste(event.text))
        else:
            self.paste(event.text)

    def paste(self, text: str) -> None:
        """Take the focus and put a pasted text in, a big one as a chip."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        if is_big(text):
            number = max(self._pastes, default=0) + 1
            self._pastes[number] = text
            text = chip(number, text)
        self.type_in(text)

    def open_chip(self) -> bool:
        """Put the text of a chip in its place, of the one at the cursor first; tell if there is one."""
        found = self.draft.chip_at(len(self.get_text_range((0, 0), self.cursor_location)))
        if found is not None:
            start, end, text = found
            places = _location(self.text, start), _location(self.text, end)
            self.replace(text, *places, maintain_selection_offset=False)
        return found is not None

    def type_in(self, text: str) -> None:
        """Take the focus and put a text where the cursor is, or in place of what is selected."""
        self.focus()
        self.replace(text, *self.selection, maintain_selection_offset=False)

    def _enter(self) -> None:
        row, column = self.cursor_location
        if self.document.get_line(row)[:column].endswith("\\"):
            self.replace("\n", (row, column - 1), (row, column))
            return
        text = self.draft.expanded
        if text.strip():
            self.draft = Draft() if self._recalled is None else self._unsent
            self.post_message(self.Submitted(text, self.chat))

    def _recall(self, step: int) -> bool:
        if not self._past or (self._recalled is None and step > 0):
            return False
        if self._recalled is None:
            self._unsent = self.draft
        position = (len(self._past) if self._recalled is None else self._recalled) + step
        if position < 0:
            return True
        if position >= len(self._past):
            self.draft = self._unsent
        else:
            self.draft = Draft.folded(self._past[position])
            self._recalled = position
        return True


def _location(text: str, position: int) -> tuple[int, int]:
    """Return the row and column of a character."""
    return text.count("\n", 0, position), position - (text.rfind("\n", 0, position) + 1)
