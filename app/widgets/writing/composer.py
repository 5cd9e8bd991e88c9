"""Where messages are written: several lines, growing; Enter sends; big pastes fold into chips that open.

What begins with / is a command, and what stands behind an @ becomes a file: a list over it completes both.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from textual import events
from textual.message import Message
from textual.widgets.text_area import Selection

from app.chat.draft import Draft, attachment_chip, chip, is_big
from app.widgets.writing.completions import Completions
from app.widgets.writing.shell_area import ShellArea
from app.writing.attachment import Attachment
from app.writing.commands import as_written, called
from app.writing.mentions import mention_before
from app.writing.prompts import PLACEHOLDER

_ENTER_KEYS = frozenset({"enter", "ctrl+j", "shift+enter", "alt+enter", "ctrl+enter"})
_XTERM_KEYS = {"shift+\r": "shift+enter", "\r": "alt+enter", "ctrl+\r": "ctrl+enter"}
"""What Textual makes of `CSI 27;2;13~`, `27;3;13~` and `27;5;13~`, xterm's Enter with another key held."""
_MOST_LINES = 10
_SETTLE_SECONDS = 1.0


class Composer(ShellArea):
    """A text area that sends. It leaves every key of the action registry to the screen."""

    class Submitted(Message):
        """The reader sends this text, chips expanded, in the chat with the id `chat`."""

        def __init__(self, text: str, chat: str) -> None:
            super().__init__()
            self.text = text
            self.chat = chat

    class Called(Message):
        """The reader calls a command by its name; what stands behind it is `rest`."""

        def __init__(self, name: str, rest: str) -> None:
            super().__init__()
            self.name = name
            self.rest = rest

    class Completed(Message):
        """The reader takes the highlighted completion; `goes_on` where more is to be written behind it."""

        def __init__(self, *, goes_on: bool) -> None:
            super().__init__()
            self.goes_on = goes_on

    def __init__(self, *, id: str | None = None) -> None:
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
        self._sending = frozenset({"enter"})
        """The keys that send; the others of `_ENTER_KEYS` begin a line."""
        self.completions = Completions(id="completions")
        """The list over this widget; the screen shows it."""
        self.complete: Callable[[], None] = lambda: None
        """Brings the list up to date with the text."""
        self._filling = False
        """Whether a prompt with places to fill in was put in."""
        self._chips: dict[int, str] = {}
        self._past: Sequence[str] = ()
        self._recalled: int | None = None
        self._unsent = Draft()
        self._held: list[events.Key | events.Paste] | None = None

    @property
    def draft(self) -> Draft:
        """What is written now."""
        return Draft(self.text, dict(self._chips))

    @draft.setter
    def draft(self, draft: Draft) -> None:
        self._chips = dict(draft.chips)
        self._recalled = None
        self._filling = False
        self.load_text(draft.text)
        self.move_cursor(self.document.end)

    @property
    def kept(self) -> Draft:
        """What is to be saved: behind an earlier message that was recalled, what was begun before it."""
        if self._recalled is None:
            return self.draft
        unchanged = self.draft.message == self._past[self._recalled]
        return self._unsent if unchanged else self.draft.after(self._unsent.expanded)

    def set_enter(self, *, sends: bool, others: Sequence[str]) -> None:
        """Say whether Enter sends; the other keys do what it does not."""
        self._sending = frozenset({"enter"} if sends else others)

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
        key = _XTERM_KEYS.get(event.key, event.key)
        sends = key in self._sending
        if (sends or event.key == "tab") and (self.before_cursor[:1] == "/" or self.completions.chosen):
            # The text may have changed since the list was made.
            self.complete()
        if self.completions.chosen is not None and self._choose(event.key, sends=sends):
            pass
        elif key in _ENTER_KEYS and not sends:
            self.insert("\n")
        elif sends:
            self._enter()
        elif event.key == "tab" and self._filling:
            handled = self._filling = self.next_placeholder()
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
            number = max(self._chips, default=0) + 1
            self._chips[number] = text
            text = chip(number, text)
        self.type_in(text)

    def attach(self, attachment: Attachment, tokens: int | None) -> None:
        """Put a chip for what was read in place of the mention before the cursor."""
        number = max(self._chips, default=0) + 1
        self._chips[number] = attachment.text
        made = attachment_chip(number, attachment.kind, attachment.name, attachment.text, tokens)
        self.replace_word(f"{made} ")

    @property
    def before_cursor(self) -> str:
        """The text of the cursor's line before it; in later lines nothing calls a command."""
        row, column = self.cursor_location
        line = self.document.get_line(row)[:column]
        return line if not row else f" {line}"

    @property
    def state(self) -> tuple[str, tuple[int, int]]:
        """What completions are made for: the text and the cursor."""
        return self.text, self.cursor_location

    def replace_word(self, text: str) -> None:
        """Put a text in place of the mention before the cursor."""
        row, column = self.cursor_location
        written = mention_before(self.before_cursor)
        length = 0 if written is None else len(written) + 1
        self.replace(text, (row, column - length), (row, column), maintain_selection_offset=False)

    def put(self, text: str, *, fill: bool = False) -> None:
        """Put a text in place of the whole message, so that undo brings that back.

        fill: whether it has places to fill in, which Tab goes through.
        """
        self.replace(text, (0, 0), self.document.end, maintain_selection_offset=False)
        if fill:
            self.move_cursor((0, 0))
            self._filling = self.next_placeholder()
            if not self._filling:
                self.move_cursor(self.document.end)

    def next_placeholder(self) -> bool:
        """Select the next place to fill in, round the end; tell if there is one."""
        text, at = self.text, len(self.get_text_range((0, 0), self.cursor_location))
        found = PLACEHOLDER.search(text, at) or PLACEHOLDER.search(text)
        if found is not None:
            start, end = _location(text, found.start()), _location(text, found.end())
            self.selection = Selection(start, end)
        return found is not None

    def fold_selection(self) -> bool:
        """Put a chip in place of what is selected; tell if anything is."""
        text = self.selected_text
        if text:
            number = max(self._chips, default=0) + 1
            self._chips[number] = text
            self.type_in(chip(number, text))
        return bool(text)

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

    def _choose(self, key: str, *, sends: bool) -> bool:
        """Use a key on the list over this widget; tell if it is one of its keys."""
        if key in ("up", "down"):
            self.completions.move(-1 if key == "up" else 1)
        elif key == "tab" or sends:
            self.post_message(self.Completed(goes_on=key == "tab"))
        elif key == "escape":
            self.completions.dismiss()
        else:
            return False
        return True

    def _enter(self) -> None:
        row, column = self.cursor_location
        if self.document.get_line(row)[:column].endswith("\\"):
            self.replace("\n", (row, column - 1), (row, column))
            return
        if call := called(self.text):
            self.post_message(self.Called(*call))
            return
        text = self.draft.message
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
            self.draft = Draft.folded(as_written(self._past[position]))
            self._recalled = position
        return True


def _location(text: str, position: int) -> tuple[int, int]:
    """Return the row and column of a character."""
    return text.count("\n", 0, position), position - (text.rfind("\n", 0, position) + 1)
