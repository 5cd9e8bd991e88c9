"""The history of conversations: saved while they stream, back after a restart or a kill.

One thread owns the database; every call puts work into its queue. Streamed text is written in
batches, at most `FLUSH_SECONDS` after it came, so a kill loses less than half a second.
"""

import contextlib
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any, TypeVar

from app.chat.conversation import Conversation
from app.history.file.opening import (
    Database,
    HistoryUnusableError,
    file_identity,
    is_corrupt,
    open_database,
    open_file,
    take_over,
)
from app.history.file.reading import read_conversation
from app.history.file.search_index import fill_parts
from app.history.file.windows import is_running
from app.history.outbox import Outbox
from app.history.pending import OpenTabs
from app.history.questions import Questions
from app.history.statements import ConversationSummary, bring_back, read_recent, recover, with_waiting
from app.history.writing import delete_all_hidden, write

FLUSH_SECONDS = 0.3
UNDO_SECONDS = 60.0
"""How long a deleted conversation can be brought back."""
_FILL_PAUSE_S = 0.05
"""Between two steps of what is done while nothing else is asked."""
_RETRY_SECONDS = 2.0
_REOPEN_SECONDS = 5.0
_ANSWER_SECONDS = 15.0
_OPEN_SECONDS = 60.0
_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class HistoryStore(Questions):
    """The history file at `path`; None keeps everything in memory.

    The file is opened on the history's thread; questions wait for that. `on_warning` is called there with
    a sentence for the person, whenever what `standing` says may have changed too. No method raises because
    of the file: trouble becomes a warning, and what could not be written waits until it can be.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        on_warning: Callable[[str], None] | None = None,
        visiting: bool = False,
    ) -> None:
        """visiting: for a command, which shows no tabs and keeps nothing in another file."""
        self.path = path
        self._visiting = visiting
        self.on_warning = on_warning
        self._outbox = Outbox()
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._database: Database
        self._lock = threading.Lock()
        self._asked: set[Future[Any]] | None = set()
        """Questions without an answer; None once there will be none."""
        self._retry_at = 0.0
        self._trouble: str | None = None
        """Why what waits cannot be written."""
        self.notices: tuple[str, ...] = ()
        """What the person should read once."""
        self._ended_saved = False
        self._filling = False
        """Whether older messages may be missing in an index."""
        self._opened = threading.Event()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    @property
    def unsaved(self) -> bool:
        """Whether something is in no file and cannot be written now."""
        return self._opened.is_set() and (self._trouble is not None or self._only_in_memory)

    @property
    def standing(self) -> tuple[str, ...]:
        """What is wrong with the saving, as long as it is, the most important first."""
        if not self._opened.is_set():
            return ()
        lines: list[str] = []
        problem, where = self._database.problem, self._database.path
        if problem is not None and where is not None:
            lines.append(f"{problem}. What you write is kept in {where.name} and joins your chats later.")
        if self.unsaved:
            lines.insert(0, f"NOT SAVED: {self._trouble or problem}. It is tried again until it succeeds.")
        return tuple(lines)

    def dismiss(self) -> bool:
        """Take the notices away; tell whether there were any."""
        there, self.notices = bool(self.notices), ()
        return there

    def save(self, conversation: Conversation) -> None:
        """Save a conversation as it stands: its settings, draft, and every message that changed."""
        self._outbox.save(conversation)
        self._wake()

    def append(self, conversation: Conversation, node_id: str) -> None:
        """Note that an answer has grown; it is written within half a second. Costs next to nothing."""
        if self._outbox.append(conversation, node_id):
            self._wake()

    def save_tabs(self, ids: Sequence[str], active: str | None, read_only: Iterable[str] = ()) -> None:
        """Save which conversations are open, in order, the active one, and which are only read here."""
        self._outbox.save_tabs(OpenTabs(tuple(ids), active, frozenset(read_only)))
        self._wake()

    def load(self, conversation_id: str) -> Conversation | None:
        """Read a conversation; an answer that was interrupted is "stopped" with its text."""

        def has_ended(window: int) -> bool:
            path = self._database.path
            return path is None or window == self._database.window or not is_running(path, window)

        loaded = self._ask(
            lambda database: read_conversation(database.connection, conversation_id, has_ended), None
        )
        return self._outbox.read(conversation_id, loaded)

    def recent(self, limit: int = 50) -> list[ConversationSummary]:
        """Return the conversations that hold messages or a draft, the last changed first."""
        nothing: list[ConversationSummary] = []
        found = self._ask(lambda database: read_recent(database, limit), nothing)
        return with_waiting(found, self._outbox.waiting(), limit)

    def hide(self, conversation_id: str) -> bool:
        """Delete a conversation so that it can be brought back; what still streams into it is not saved.

        `delete_hidden` deletes it for good, or a start after `UNDO_SECONDS`. False, and nothing is done,
        while another app that runs has it in a tab.
        """
        if self.is_open_elsewhere(conversation_id):
            return False
        self._outbox.hide(conversation_id)
        self.flush()
        return True

    def bring_back(self, conversation_id: str) -> bool:
        """Show a hidden conversation again; False when it is deleted for good."""
        self._outbox.bring_back(conversation_id)
        return self._ask(lambda database: bring_back(database.connection, conversation_id), False)

    def discard(self, conversation_id: str) -> None:
        """Delete a conversation soon if there is nothing in it; does not wait."""
        self._outbox.discard(conversation_id)
        self._wake()

    def flush(self) -> bool:
        """Write everything that waits; True when nothing would be lost by leaving."""
        return self._ask(lambda _: self._is_saved(), False)

    def close(self, timeout: float = 5.0) -> bool:
        """Write everything that waits and end the thread; tell whether all was written.

        Calling it again does nothing.
        """
        if self._thread.is_alive():
            self._inbox.put(None)
            self._thread.join(timeout)
        return self._ended_saved

    def _is_saved(self) -> bool:
        # Once more, as a damaged file is begun anew with all that is open.
        self._write_pending()
        return self._trouble is None and not (self._only_in_memory and read_recent(self._database, 1))

    @property
    def _only_in_memory(self) -> bool:
        return self._database.problem is not None and self._database.path is None

    def _wake(self) -> None:
        self._inbox.put(_nothing)

    def _ask(self, question: Callable[[Database], _T], otherwise: _T) -> _T:
        """Run a question on the history's thread, after all that was saved before it."""
        if not self._opened.wait(_OPEN_SECONDS):
            self._warn(f"{self._name} cannot be opened yet; it is still tried.")
            return otherwise
        answer: Future[_T] = Future()

        def work() -> None:
            self._write_pending()
            try:
                answer.set_result(self._answer(question))
            except Exception as error:
                answer.set_exception(error)
            with self._lock:
                if self._asked is not None:
                    self._asked.discard(answer)

        with self._lock:
            if self._asked is None:
                return otherwise
            self._asked.add(answer)
        self._inbox.put(work)
        try:
            return answer.result(_ANSWER_SECONDS)
        except CancelledError:
            return otherwise
        except Exception as error:
            self._warn(f"The history did not answer: {error or 'it takes too long'}", error)
            return otherwise

    def _answer(self, question: Callable[[Database], _T]) -> _T:
        try:
            return question(self._database)
        except sqlite3.Error as error:
            if not is_corrupt(error):
                raise
            self._begin_anew(error)
        return question(self._database)

    def _run(self) -> None:
        try:
            self._use(open_database(self.path, visiting=self._visiting))
        finally:
            self._opened.set()
        for line in (*self.standing, *self.notices):
            _log.warning("%s: %s", self.path, line)
        try:
            while self._serve():
                pass
        finally:
            with contextlib.suppress(sqlite3.Error):
                self._ended_saved = self._is_saved()
            self._database.close()
            with self._lock:
                asked, self._asked = self._asked or set(), None
            for answer in asked:
                answer.cancel()

    def _use(self, database: Database) -> None:
        """Go on with a database that was opened."""
        self._database = database
        self._filling = database.searchable and not self._visiting
        self.notices += tuple(database.notices)
        self._retry_at = time.monotonic() + _REOPEN_SECONDS if database.problem else 0.0
        try:
            recover(database)
            delete_all_hidden(database, time.time() - UNDO_SECONDS)
        except sqlite3.Error as error:
            _log.warning("unfinished answers could not be closed (%s)", error)

    def _serve(self) -> bool:
        """Wait for work, gather what comes within `FLUSH_SECONDS`, write it; False at the end."""
        busy = bool(self._outbox) or self._database.problem is not None
        wait = max(0.05, self._retry_at - time.monotonic()) if busy else None
        try:
            item = self._inbox.get(timeout=_FILL_PAUSE_S if self._filling and not busy else wait)
        except queue.Empty:
            self._try_again() if busy else self._fill()
            return True
        deadline = time.monotonic() + FLUSH_SECONDS
        while item is _nothing:
            try:
                item = self._inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
        if item is None:
            return False
        if item is not _nothing:
            item()
        if time.monotonic() >= self._retry_at:
            self._try_again()
        elif self._trouble is None:
            self._write_pending()
        return True

    def _try_again(self) -> None:
        """Go back from what stands in for the file, if the file can be used again, and write what waits."""
        if self._database.problem is not None and self.path is not None:
            self._retry_at = time.monotonic() + _REOPEN_SECONDS
            with contextlib.suppress(HistoryUnusableError, sqlite3.Error):
                database = open_file(self.path, visiting=self._visiting)
                self._use(take_over(self._database, database))
                self._warn("The history can be used again; everything is saved.")
        self._write_pending()

    def _fill(self) -> None:
        """Bring some of what was written before there was an index of parts into it."""
        try:
            self._filling = fill_parts(self._database.connection)
        except sqlite3.Error as error:
            self._filling = False
            _log.warning("the index of older messages stays as it is (%s)", error)

    def _write_pending(self) -> None:
        """Write everything that waits in one transaction; on failure keep it for the next try."""
        if self._outbox and self._was_replaced:
            self._begin_anew(None)
        pending = self._outbox.take()
        if not pending:
            return
        try:
            written = write(self._database, pending, self._outbox.known)
        except sqlite3.Error as error:
            self._outbox.put_back(pending)
            self._failed(error)
            return
        self._outbox.written(written.known)
        if self._trouble is not None:
            self._trouble = None
            self._warn("The history can be written again; everything is saved.")
        for title in written.brought_back:
            self._warn(f"“{title}” was deleted in another window; as it goes on here, it is kept whole.")
        for refused in written.refused:
            self._warn(f"A change could not be saved in {refused}")

    def _failed(self, error: sqlite3.Error) -> None:
        self._retry_at = time.monotonic() + _RETRY_SECONDS
        if is_corrupt(error):
            self._begin_anew(error)
            return
        new, self._trouble = self._trouble is None, f"{self._name} cannot be written ({error})"
        if new:
            self._warn(self.standing[0])

    @property
    def _was_replaced(self) -> bool:
        """Whether another file has the name of the one that is open: another window found it damaged, say."""
        path = self._database.path
        return path is not None and path == self.path and file_identity(path) != self._database.identity

    def _begin_anew(self, damage: sqlite3.Error | None) -> None:
        """Open the file again, a damaged one moved aside, and save into it all that the app still holds."""
        replaced = self._was_replaced
        self._database.close()
        why = None if replaced or damage is None else str(damage)
        database = open_database(self.path, why, visiting=self._visiting)
        self._use(database)
        for line in (*self.standing, *database.notices):
            self._warn(line)
        self._outbox.begin_anew()
        self._wake()

    @property
    def _name(self) -> str:
        return self.path.name if self.path is not None else "the history"

    def _warn(self, message: str, error: Exception | None = None) -> None:
        _log.warning("%s: %s", self.path, message, exc_info=error)
        if self.on_warning is not None:
            self.on_warning(message)


def _nothing() -> None:
    """The work of a mere wake-up."""
