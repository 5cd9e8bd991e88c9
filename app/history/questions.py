"""What is asked of the history without waiting changes: lists, order, and which window writes a chat."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

from app.chat.conversation import Conversation
from app.chat.marks import Marks
from app.history.file.opening import Database
from app.history.file.windows import last_written
from app.history.pending import OpenTabs
from app.history.search import search_conversations
from app.history.sharing import ask_takeover, claim_writing, is_written_elsewhere, takeovers_asked
from app.history.statements import (
    ConversationSummary,
    all_ids,
    is_open_elsewhere,
    read_recent,
    read_summary,
    read_tabs,
    taken_ids,
    write_marks,
)
from app.history.wanted import ALL, wanted_by
from app.history.writing import delete_hidden

_T = TypeVar("_T")


class Questions(ABC):
    """Each waits for its answer from the history's thread; none raises because of the file."""

    path: Path | None

    @abstractmethod
    def _ask(self, question: Callable[[Database], _T], otherwise: _T) -> _T:
        """Run a question on the history's thread, after all that was saved before it."""

    def list_open_tabs(self) -> OpenTabs:
        """Return the tabs that were open in this window."""
        return self._ask(read_tabs, OpenTabs())

    def search(self, query: str, limit: int = 50) -> list[ConversationSummary]:
        """Find conversations by title, text or `#tag`: every word (the last of a text may be a beginning)."""
        wanted = wanted_by(query)

        def find(database: Database) -> list[ConversationSummary]:
            if wanted.words or wanted == ALL:
                return search_conversations(database.connection, wanted, limit, database.searchable)
            return read_recent(database, limit, wanted)

        return self._ask(find, [])

    def summary(self, conversation_id: str) -> ConversationSummary | None:
        """Return the line of one conversation."""
        return self._ask(lambda database: read_summary(database.connection, conversation_id), None)

    def ids(self) -> set[str] | None:
        """Return the ids of all conversations, deleted ones too that can be brought back; None: not known."""

        def read(database: Database) -> set[str] | None:
            return None if database.problem else all_ids(database.connection)

        return self._ask(read, None)

    def taken_ids(self, conversation: Conversation) -> set[str]:
        """Return which ids of a conversation's messages are those of another's."""
        return self._ask(lambda database: taken_ids(database.connection, conversation), set())

    def is_open_elsewhere(self, conversation_id: str) -> bool:
        """Tell whether another app that runs has a conversation in a tab."""
        return self._ask(lambda database: is_open_elsewhere(database, conversation_id), False)

    def mark(self, conversation_id: str, marks: Marks) -> bool:
        """Pin, archive and tag a conversation; False when that could not be done."""
        return self._ask(lambda database: write_marks(database.connection, conversation_id, marks), False)

    def delete_hidden(self, conversation_id: str) -> None:
        """Delete a hidden conversation for good soon; one that was brought back stays."""
        self._ask(lambda database: delete_hidden(database, conversation_id), None)

    def written_elsewhere(self, conversation_ids: Collection[str]) -> set[str]:
        """Return which of the conversations another app that runs writes; here they are only read."""
        nothing: set[str] = set()
        ids = list(conversation_ids)
        return self._ask(
            lambda database: {key for key in ids if is_written_elsewhere(database, key)}, nothing
        )

    def last_written(self) -> tuple[tuple[int, int], ...]:
        """Return what changes whenever a window writes; asks nobody, and is cheap enough for every second."""
        return last_written(self.path) if self.path is not None else ()

    def ask_takeover(self, conversation_id: str) -> None:
        """Ask the window that writes a conversation to leave that to this one."""
        self._ask(lambda database: ask_takeover(database, conversation_id), None)

    def takeovers_asked(self) -> list[str]:
        """Return the conversations of this window that another one wants to write."""
        return self._ask(takeovers_asked, [])

    def claim_writing(self, conversation_id: str) -> bool:
        """Write a conversation in this window from now on; False while another one does."""
        return self._ask(lambda database: claim_writing(database, conversation_id), False)
