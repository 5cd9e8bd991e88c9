"""All chats that are kept, those without a tab too: search them, open one, delete one."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from typing import ClassVar, NamedTuple

from rich.cells import cell_len
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from app.history.statements import ConversationSummary
from app.history.store import HistoryStore
from app.models.builtin import model_title
from app.screens.dialogs.confirm import ConfirmScreen
from app.screens.dialogs.list_keys import move_in
from app.settings.words import age_text
from app.widgets.lines import fit
from app.widgets.pick_list import PickList
from app.widgets.words import words

_MOST = 200
"""Chats that are listed; searching finds the others."""
_TYPING_SECONDS = 0.12
"""A pause in typing that is long enough to search."""
_AHEAD = 20
"""Lines below the shown ones that are drawn before they are scrolled to."""
_MESSAGES, _AGE = 8, 8
_MODEL_NARROW, _MODEL_WIDE, _WIDE = 14, 24, 84
"""Cells of the model's name, in lists narrower than `_WIDE` and in others."""
_HINTS = "Enter opens · Del deletes · Esc leaves"
_EMPTY = (
    "No chat is kept yet. Whatever you write and every answer is saved while it is written, "
    "and is listed here also when its tab is closed."
)


class Found(NamedTuple):
    """A chosen chat; where a search found it in a message, that message and the words looked for."""

    chat: ConversationSummary
    words: tuple[str, ...] = ()


class ChatsScreen(ModalScreen[Found | None]):
    """Returns the chosen chat.

    opened: ids of the chats that have a tab; delete: deletes a chat for good, its tab included, or says
    why not and returns False.
    """

    CSS_PATH: ClassVar = ["dialog.tcss", "chats.tcss"]
    BINDINGS: ClassVar = [
        ("escape", "dismiss(None)", "Cancel"),
        Binding("delete", "delete", "Delete", priority=True),
    ]

    def __init__(
        self, history: HistoryStore, opened: Collection[str], delete: Callable[[str], Awaitable[bool]]
    ) -> None:
        super().__init__()
        self._history = history
        self._opened = opened
        self._delete = delete
        self._chats: list[ConversationSummary] = []
        self._asked = 0
        """How often the list was asked for; one that is older than the last question is not shown."""
        self._looking = False
        self._enter_waits = False
        """Whether Enter was pressed before the list was there that it was meant for."""

    def compose(self) -> ComposeResult:
        """A line to search with, the list, and what the keys do."""
        with Vertical(classes="dialog"):
            yield Static("All chats", classes="heading")
            yield Input(placeholder="Search titles and messages", compact=True)
            yield Static("", id="columns")
            yield PickList(id="chats", markup=False, compact=True)
            yield Static("", id="nothing")
            yield Static(words(_HINTS), id="foot", classes="foot")

    def on_mount(self) -> None:
        """List the newest chats."""
        self.query_one("#nothing").display = False
        self.watch(self.query_one(OptionList), "scroll_y", self._on_scrolled, init=False)
        self._look()

    def on_resize(self) -> None:
        """Lay the rows out for the new width."""
        self.call_after_refresh(self._show)

    @on(Input.Changed)
    def _look(self) -> None:
        self._asked += 1
        self._enter_waits = False
        if not self._looking:
            self._looking = True
            self.run_worker(self._keep_looking(), group="look")

    async def _keep_looking(self) -> None:
        """Ask the history off the UI's thread until the answer is the one that was asked for last."""
        answered, chats = 0, self._chats
        while answered != self._asked:
            answered = self._asked
            query = self.query_one(Input).value
            if query.strip():
                # One letter fits most words and takes longest: whoever goes on typing does not wait for it.
                await asyncio.sleep(_TYPING_SECONDS)
                if answered != self._asked:
                    continue
                chats = await asyncio.to_thread(self._history.search, query, _MOST)
            else:
                chats = await asyncio.to_thread(self._history.recent, _MOST)
        self._looking = False
        self._chats = chats
        self._show(0)
        if self._enter_waits:
            self._choose(0)

    def _show(self, at: int | None = None) -> None:
        """Draw the list; `at` is the row to highlight, None for the one that is."""
        options = self.query_one(OptionList)
        at = options.highlighted if at is None else at
        options.clear_options()
        self._add_rows((at or 0) + 1)
        if self._chats:
            options.highlighted = min(at or 0, len(self._chats) - 1)
        title, rest = _columns("Title", "Model", "Messages", "Age", self._width)
        self.query_one("#columns", Static).update(words(f"  {title}{rest}"))
        self._show_words()

    @property
    def _width(self) -> int:
        return max(40, self.query_one(OptionList).size.width - 3)

    def _add_rows(self, least: int = 0) -> None:
        """Draw so many rows at least, and a screenful more: all at once they would hold up a frame."""
        options = self.query_one(OptionList)
        begin = options.option_count
        end = max(begin, least) + options.size.height + _AHEAD
        options.add_options([Option(self._row(chat, self._width)) for chat in self._chats[begin:end]])

    def _on_scrolled(self) -> None:
        options = self.query_one(OptionList)
        if options.option_count < len(self._chats) and options.max_scroll_y - options.scroll_y < _AHEAD:
            self._add_rows()

    def _show_words(self) -> None:
        """Say why the list is empty, and in the foot that there is more than is listed."""
        query = self.query_one(Input).value.strip()
        nothing = not self._chats and not self._looking
        for part in ("#columns", "#chats"):
            self.query_one(part).display = not nothing
        text = f"No title and no message holds “{query}”." if query else _EMPTY
        note = self.query_one("#nothing", Static)
        note.display = nothing
        note.update(words(text))
        hints = [_HINTS] if self._chats else ["Esc leaves"]
        if any(chat.id in self._opened for chat in self._chats):
            hints.append("● has a tab")
        if len(self._chats) == _MOST:
            hints.append(f"newest {_MOST}")
        self.query_one("#foot", Static).update(words(" · ".join(hints)))

    def _row(self, chat: ConversationSummary, width: int) -> Content:
        mark = "● " if chat.id in self._opened else "  "
        model = model_title(chat.model_path) if chat.model_path else ""
        age = age_text(time.time() - chat.updated)
        title, rest = _columns(chat.title, model, f"{chat.messages:,}", age, width)
        row = Content.assemble((mark, "$accent"), (title, "bold"), (rest, "$foreground 70%"))
        if not chat.snippet:
            return row
        return Content("\n").join([row, self._snippet(fit(chat.snippet, width - 2).rstrip())])

    def _snippet(self, text: str) -> Content:
        """Return a found message's text with the words that were looked for in another colour."""
        line = Content.assemble("  ", (text, "$foreground 70%"))
        lowered = text.lower()
        if len(lowered) != len(text):
            return line
        for word in self.query_one(Input).value.lower().split():
            at = lowered.find(word)
            while at >= 0:
                line = line.stylize("$accent", at + 2, at + 2 + len(word))
                at = lowered.find(word, at + len(word))
        return line

    def on_key(self, event: events.Key) -> None:
        """Move in the list while the search keeps the focus."""
        move_in(self.query_one(OptionList), event)

    @on(Input.Submitted)
    def _on_submitted(self) -> None:
        if self._looking:
            self._enter_waits = True
        else:
            self._choose(self.query_one(OptionList).highlighted)

    @on(OptionList.OptionSelected)
    def _on_selected(self, event: OptionList.OptionSelected) -> None:
        self._choose(event.option_index)

    def _choose(self, index: int | None) -> None:
        if index is not None and index < len(self._chats):
            self.dismiss(Found(self._chats[index], tuple(self.query_one(Input).value.split())))

    def action_delete(self) -> None:
        """Ask, and delete the highlighted chat for good."""
        index = self.query_one(OptionList).highlighted
        if index is None or self._looking or index >= len(self._chats):
            return
        chat = self._chats[index]
        tab = " and close its tab" if chat.id in self._opened else ""
        question = f"Delete “{chat.title}”{tab}? Its {_count(chat.messages)} cannot be brought back."

        def answered(yes: bool | None) -> None:
            if yes:
                self.run_worker(self._delete_chat(chat), group="delete")

        self.app.push_screen(ConfirmScreen(question, "Delete for good", "Keep it"), answered)

    async def _delete_chat(self, chat: ConversationSummary) -> None:
        if not await self._delete(chat.id):
            return
        self._chats = [other for other in self._chats if other.id != chat.id]
        self._show()


def _columns(title: str, model: str, messages: str, age: str, width: int) -> tuple[str, str]:
    """Return a row's title and its other columns; two of the `width` cells are left for the mark."""
    model_width = _MODEL_WIDE if width >= _WIDE else _MODEL_NARROW
    cells = (fit(model, model_width), fit(messages, _MESSAGES, right=True), fit(age, _AGE, right=True))
    rest = "".join("  " + cell for cell in cells)
    return fit(title, width - 2 - cell_len(rest)), rest


def _count(messages: int) -> str:
    return f"{messages:,} messages" if messages != 1 else "only message"
