"""All chats that are kept, those without a tab too: search, open, order, export and delete them."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import ClassVar, NamedTuple, Protocol

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from app.chat.marks import Marks
from app.history.statements import ConversationSummary
from app.history.store import HistoryStore
from app.screens.dialogs.chat_rows import chat_row, heading
from app.screens.dialogs.list_keys import move_in
from app.widgets.pick_list import PickList
from app.widgets.words import words

_MOST = 200
"""Chats that are listed; searching finds the others."""
_TYPING_SECONDS = 0.12
"""A pause in typing that is long enough to search."""
_AHEAD = 20
"""Lines below the shown ones that are drawn before they are scrolled to."""
_HINTS = ("Enter opens", "Ctrl+F pins", "Ctrl+A archives", "Ctrl+T tags", "Ctrl+E exports", "Del deletes")
_EMPTY = (
    "No chat is kept yet. Whatever you write and every answer is saved while it is written, "
    "and is listed here also when its tab is closed."
)


class Found(NamedTuple):
    """A chosen chat; where a search found it in a message, that message and the words looked for."""

    chat: ConversationSummary
    words: tuple[str, ...] = ()


class Keeper(Protocol):
    """Who carries out what concerns tabs and files."""

    async def delete_chat(self, chat: ConversationSummary) -> bool:
        """Delete a chat and close its tab, or say why not."""

    async def undo_delete(self) -> bool:
        """Bring the chat back that was deleted last; tell whether there was one."""

    def export_chat(self, chat: ConversationSummary) -> None:
        """Ask what to write a chat as, and write it."""


class ChatsScreen(ModalScreen[Found | None]):
    """Returns the chosen chat.

    opened: ids of the chats that have a tab; undo_keys: bring back what was deleted, as Textual names them.
    """

    CSS_PATH: ClassVar = ["dialog.tcss", "chats.tcss"]
    BINDINGS: ClassVar = [
        ("escape", "dismiss(None)", "Cancel"),
        Binding("delete", "delete", "Delete", priority=True),
        Binding("ctrl+f", "pin", "Pin", priority=True),
        Binding("ctrl+a", "archive", "Archive", priority=True),
        Binding("ctrl+t", "tag", "Tags", priority=True),
        Binding("ctrl+e", "export", "Export", priority=True),
    ]

    def __init__(
        self, history: HistoryStore, opened: Collection[str], keeper: Keeper, undo_keys: str
    ) -> None:
        super().__init__()
        self._history = history
        self._opened = opened
        self._keeper = keeper
        self._undo_keys = frozenset(key.strip() for key in undo_keys.split(","))
        self.VERTICAL_BREAKPOINTS = [(0, "-short"), (20, "-tall")]
        self._chats: list[ConversationSummary] = []
        self._asked = 0
        """How often the list was asked for; one that is older than the last question is not shown."""
        self._looking = False
        self._list_width = 0
        self._enter_waits = False
        """Whether Enter was pressed before the list was there that it was meant for."""

    def compose(self) -> ComposeResult:
        """A line to search with, the list, and what the keys do."""
        with Vertical(classes="dialog"):
            yield Static("All chats", classes="heading")
            yield Input(placeholder="Search titles and messages; #tag, #pinned, #archived", compact=True)
            yield Static("", id="columns")
            yield PickList(id="chats", markup=False, compact=True)
            yield Static("", id="nothing")
            yield Static("", id="foot", classes="foot")

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
        self.query_one("#columns", Static).update(words(heading(self._width)))
        self._show_words()

    @property
    def _width(self) -> int:
        # A list that is hidden while it is empty has no width.
        self._list_width = self.query_one(OptionList).size.width or self._list_width
        return max(40, self._list_width - 3)

    def _add_rows(self, least: int = 0) -> None:
        """Draw so many rows at least, and a screenful more: all at once they would hold up a frame."""
        options = self.query_one(OptionList)
        begin = options.option_count
        end = max(begin, least) + options.size.height + _AHEAD
        query, opened = self.query_one(Input).value, self._opened
        rows = [
            chat_row(chat, query, self._width, opened=chat.id in opened) for chat in self._chats[begin:end]
        ]
        options.add_options([Option(row) for row in rows])

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
        text = (
            f"No title and no message holds “{query}”; #archived looks in the archive." if query else _EMPTY
        )
        note = self.query_one("#nothing", Static)
        note.display = nothing
        note.update(words(text))
        hints = [*(_HINTS if self._chats else ()), "Esc leaves"]
        if any(chat.id in self._opened for chat in self._chats):
            hints.append("● has a tab")
        if len(self._chats) == _MOST:
            hints.append(f"newest {_MOST}")
        self.query_one("#foot", Static).update(words(" · ".join(hints)))

    def on_key(self, event: events.Key) -> None:
        """Move in the list while the search keeps the focus; bring back what was deleted."""
        if event.key in self._undo_keys:
            event.stop()
            event.prevent_default()
            self.run_worker(self._undo(), group="delete")
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
            self.dismiss(Found(self._chats[index], tuple(self._words)))

    @property
    def _words(self) -> list[str]:
        return [word for word in self.query_one(Input).value.split() if not word.startswith("#")]

    @property
    def _highlighted(self) -> ConversationSummary | None:
        index = self.query_one(OptionList).highlighted
        there = index is not None and not self._looking and index < len(self._chats)
        return self._chats[index] if there and index is not None else None

    def action_pin(self) -> None:
        """Have the highlighted chat stand first, or no more."""
        self._change(lambda marks: replace(marks, pinned=not marks.pinned))

    def action_archive(self) -> None:
        """Put the highlighted chat into the archive, or take it out."""
        if (chat := self._highlighted) is not None:
            said = "is in the list again" if chat.marks.archived else "is archived; #archived finds it"
            self.notify(f"“{chat.title}” {said}.")
            self._change(lambda marks: replace(marks, archived=not marks.archived))

    def action_tag(self) -> None:
        """Ask for the highlighted chat's tags."""
        from app.screens.dialogs.tags import TagsScreen

        chat = self._highlighted
        if chat is None:
            return

        def answered(tags: tuple[str, ...] | None) -> None:
            if tags is not None:
                self._mark(chat, replace(chat.marks, tags=tags))

        self.app.push_screen(TagsScreen(chat.marks.tags), answered)

    def action_export(self) -> None:
        """Write the highlighted chat into a file."""
        if (chat := self._highlighted) is not None:
            self._keeper.export_chat(chat)

    def action_delete(self) -> None:
        """Delete the highlighted chat; it can be brought back."""
        if (chat := self._highlighted) is not None:
            self.run_worker(self._delete(chat), group="delete")

    async def _delete(self, chat: ConversationSummary) -> None:
        if await self._keeper.delete_chat(chat):
            self._chats = [other for other in self._chats if other.id != chat.id]
            self._show()

    async def _undo(self) -> None:
        if await self._keeper.undo_delete():
            self._look()

    def _change(self, change: Callable[[Marks], Marks]) -> None:
        if (chat := self._highlighted) is not None:
            self._mark(chat, change(chat.marks))

    def _mark(self, chat: ConversationSummary, marks: Marks) -> None:
        self.run_worker(self._save_marks(chat, marks), group="mark")

    async def _save_marks(self, chat: ConversationSummary, marks: Marks) -> None:
        if not await asyncio.to_thread(self._history.mark, chat.id, marks):
            self.notify(f"“{chat.title}” could not be changed.", severity="warning")
        self._look()
