"""What every part of the chat screen stands on: the open chats, the way to the widgets, toasts.

The screen's actions are classes built on this one; each calls what it is built on and nothing else.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from textual.screen import Screen

from app.chat.events import SessionEvent
from app.chat.session import ChatSession
from app.screens.chat.beat import Beat
from app.screens.chat.deck import TranscriptDeck
from app.screens.chat.tabs import Tabs
from app.screens.compositor import paint_dirty_rows_only
from app.screens.context import AppContext
from app.screens.fetching import Fetchable
from app.widgets.writing.composer import Composer

_Answer = TypeVar("_Answer")


class Watching(Protocol):
    """A screen that follows chats."""

    def take(self, session: ChatSession, event: SessionEvent) -> None:
        """Show what has happened in a chat."""


class ChatBase(Screen[None]):
    """State and small services of the chat screen."""

    def __init__(self, context: AppContext, report: Callable[[ChatSession, SessionEvent], None]) -> None:
        super().__init__()
        self.context = context
        self.tabs = Tabs(context, report)
        self.beat = Beat(self, context, self.tabs)
        self.composer = Composer(id="composer")
        """Where the reader writes; held here, so that its text can be saved when the widget has failed."""
        self.set_enter()
        self.offered: Sequence[Fetchable] = ()
        """Models that an empty chat offers to fetch."""
        self.over: Watching | None = None
        """The screen over this one that is told, too, what happens in chats."""
        paint_dirty_rows_only(self)

    def set_enter(self) -> None:
        """Have Enter send, or begin a line, as the settings have it."""
        general = self.context.settings.general
        self.composer.set_enter(sends=general.enter_sends, others=general.other_enter_keys)

    @property
    def active(self) -> ChatSession:
        """The chat in front."""
        return self.tabs.active

    @property
    def deck(self) -> TranscriptDeck:
        """Where the transcript is."""
        return self.query_one("#deck", TranscriptDeck)

    def say(self, text: str, severity: str = "information", title: str = "") -> None:
        """Show a toast."""
        level = {"error": "error", "warning": "warning"}.get(severity, "information")
        seconds = 10 if level != "information" else 4
        self.notify(text, title=title, severity=level, timeout=seconds)  # type: ignore[arg-type]

    def may_write(self) -> bool:
        """Tell whether the chat in front is written here; where another window writes it, say so."""
        session = self.active
        if session.read_only:
            key = session.key("take_over")
            self.say(f"Another window of tui-chat has this chat open; {key} takes it over.", "warning")
        return not session.read_only

    def keep_draft(self) -> None:
        """Remember and save what is being written, in the tab that the composer shows."""
        index = self.tabs.index_of(self.composer.chat)
        if index >= 0:
            self.tabs.sessions[index].writing.keep(self.composer.kept)

    def show_draft(self) -> None:
        """Let the active tab's draft be written on; another wording of a message is marked."""
        session = self.active
        self.composer.chat, self.composer.draft = session.conversation.id, session.writing.draft
        self.composer.set_class(session.writing.editing is not None, "-editing")

    def ask(self, screen: Screen[_Answer | None], use: Callable[[_Answer], object]) -> None:
        """Show a dialog and use its answer, if it gives one."""

        def answered(answer: _Answer | None) -> None:
            if answer is not None:
                use(answer)

        self.app.push_screen(screen, answered)
