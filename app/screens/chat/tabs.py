"""The chats that are open, in the order of their tabs, and which of them is in front."""

from collections.abc import Callable

from app.chat.conversation import Conversation
from app.chat.events import SessionEvent
from app.chat.session import ChatSession
from app.screens.context import AppContext


class Tabs:
    """Sessions in their order; `report` hears what happens in any of them. Touches no widget."""

    def __init__(self, context: AppContext, report: Callable[[ChatSession, SessionEvent], None]) -> None:
        self.sessions: list[ChatSession] = []
        self.position = 0
        """Which one is in front."""
        self._covered = False
        self._context = context
        self._report = report
        self._focused: int | None = None

    @property
    def active(self) -> ChatSession:
        """The chat in front."""
        return self.sessions[self.position]

    def index_of(self, conversation_id: str) -> int:
        """Return which tab a chat has, -1 for none."""
        ids = (session.conversation.id for session in self.sessions)
        return next((index for index, known in enumerate(ids) if known == conversation_id), -1)

    def add(
        self, conversation: Conversation, at: int | None = None, *, read_only: bool = False
    ) -> ChatSession:
        """Put a chat at the end, or at a place; the one in front stays there.

        read_only: another window writes it.
        """
        session = self._session(conversation, read_only=read_only)
        self.sessions.insert(len(self.sessions) if at is None else at, session)
        if at is not None and self.position >= at:
            self.position += 1
        return session

    def replace(self, session: ChatSession, conversation: Conversation, *, read_only: bool) -> ChatSession:
        """Put a chat in the place of one."""
        fresh = self._session(conversation, read_only=read_only)
        self.sessions[self.sessions.index(session)] = fresh
        return fresh

    def _session(self, conversation: Conversation, *, read_only: bool) -> ChatSession:
        session = ChatSession(conversation, self._context.services, self._report)
        session.read_only = read_only
        return session

    def remove(self, session: ChatSession) -> None:
        """Take a chat out; after the one in front its neighbour is."""
        index = self.sessions.index(session)
        del self.sessions[index]
        if self.position > index or self.position >= len(self.sessions):
            self.position -= 1

    def open_model(self, session: ChatSession) -> None:
        """Open the model that a chat goes on with."""
        session.open_model(self._context.model_path(session.conversation))

    def save(self) -> None:
        """Remember which tabs are open."""
        ids = [session.conversation.id for session in self.sessions]
        read_only = [session.conversation.id for session in self.sessions if session.read_only]
        self._context.history.save_tabs(ids, self.active.conversation.id, read_only)

    def cover(self, covered: bool) -> None:
        """Say whether another screen hides the chats."""
        self._covered = covered
        self.refocus()

    def refocus(self) -> None:
        """Have the engine serve the answer that is looked at first; asked only when that changes.

        Calls of tools wait for their chat to be looked at.
        """
        for session in self.sessions:
            session.tools.look(session is self.active and not self._covered)
        focused = self.active.sequence_id
        if focused != self._focused:
            self._focused = focused
            self._context.engine.focus(focused)
