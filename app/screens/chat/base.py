"""What every part of the chat screen stands on: the open chats, the way to the widgets, toasts."""

from collections.abc import Callable
from typing import TypeVar

from textual.screen import Screen

from app.chat.conversation import Conversation
from app.chat.session import ChatSession
from app.screens.chat.deck import TranscriptDeck
from app.screens.context import AppContext
from app.widgets.composer import Composer

_Answer = TypeVar("_Answer")


class ChatBase(Screen[None]):
    """State and small services of the chat screen."""

    def __init__(self, context: AppContext) -> None:
        super().__init__()
        self.context = context
        self.sessions: list[ChatSession] = []
        self._active = 0
        self._focused: int | None = None

    @property
    def active(self) -> ChatSession:
        """The chat in front."""
        return self.sessions[self._active]

    @property
    def composer(self) -> Composer:
        """Where the reader writes."""
        return self.query_one("#composer", Composer)

    @property
    def deck(self) -> TranscriptDeck:
        """Where the transcript is."""
        return self.query_one("#deck", TranscriptDeck)

    def index_of(self, conversation_id: str) -> int:
        """Return which tab a chat has, -1 for none."""
        ids = (session.conversation.id for session in self.sessions)
        return next((index for index, known in enumerate(ids) if known == conversation_id), -1)

    async def activate(self, index: int) -> None:
        """Bring a tab to the front; the chat screen does."""
        raise NotImplementedError

    async def open_in_tab(self, conversation: Conversation, index: int) -> None:
        """Give a chat a tab at a place, and go there; the chat screen does."""
        raise NotImplementedError

    async def close(self, session: ChatSession) -> None:
        """Close a tab; the chat screen does."""
        raise NotImplementedError

    def refresh_chrome(self) -> None:
        """Bring everything around the transcript up to date."""

    def say(self, text: str, severity: str = "information", title: str = "") -> None:
        """Show a toast; the text is never read as markup."""
        level = {"error": "error", "warning": "warning"}.get(severity, "information")
        seconds = 10 if level != "information" else 4
        self.notify(text, title=title, severity=level, timeout=seconds, markup=False)  # type: ignore[arg-type]

    def keep_draft(self) -> None:
        """Remember and save what is being written in the active tab."""
        session = self.active
        session.draft = self.composer.draft
        draft = "" if session.editing is not None else session.draft.expanded
        if draft != session.conversation.draft:
            session.conversation.draft = draft
            self.context.history.save(session.conversation)

    def refocus(self) -> None:
        """Have the engine serve the answer that is looked at first; asked only when that changes."""
        focused = self.active.sequence_id
        if focused != self._focused:
            self._focused = focused
            self.context.engine.focus(focused)

    def ask(self, screen: Screen[_Answer | None], use: Callable[[_Answer], object]) -> None:
        """Show a dialog and use its answer, if it gives one."""

        def answered(answer: _Answer | None) -> None:
            if answer is not None:
                use(answer)

        self.app.push_screen(screen, answered)
