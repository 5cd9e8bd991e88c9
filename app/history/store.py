"""The history of conversations: saved while they stream, back after a restart or a kill.

One thread owns the database; every call puts work into its queue. Streamed text is written in
batches, at most `FLUSH_SECONDS` after it came, so a kill loses less than a second.
"""

import logging
import queue
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from app.chat.conversation import Conversation
from app.history.opening import Database, file_identity, is_corrupt, move_aside, open_database
from app.history.rows import conversation_row, read_conversation
from app.history.search import search_conversations
from app.history.statements import (
    ConversationSummary,
    OpenTabs,
    Pending,
    Signature,
    delete,
    is_open_elsewhere,
    read_recent,
    read_tabs,
    recover,
    signature,
    write,
)

FLUSH_SECONDS = 0.4
_RETRY_SECONDS = 2.0
_ANSWER_SECONDS = 15.0
_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class HistoryStore:
    """The history file at `path`; None keeps everything in memory.

    `on_warning` is called on the history's thread with a sentence for the person; `warning` keeps
    the one from opening. No method raises because of the file: trouble becomes a warning and the
    conversations go on in memory.
    """

    def __init__(self, path: Path | None, *, on_warning: Callable[[str], None] | None = None) -> None:
        self.path = path
        self.warning: str | None = None
        self.window = 0
        self.on_warning = on_warning
        self._lock = threading.Lock()
        self._pending = Pending()
        self._written: dict[str, Signature] = {}
        self._living: weakref.WeakValueDictionary[str, Conversation] = weakref.WeakValueDictionary()
        self._deleted: set[str] = set()
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._database: Database
        self._retry_at = 0.0
        self._troubled = False
        opened: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(opened,), name="history", daemon=True)
        self._thread.start()
        opened.result()

    def save(self, conversation: Conversation) -> None:
        """Save a conversation as it stands: its settings, draft, and every message that changed."""
        row = conversation_row(conversation)
        nodes = list(conversation.nodes.values())
        with self._lock:
            if row.id in self._deleted:
                return
            self._living[row.id] = conversation
            self._pending.conversations[row.id] = row
            for position, node in enumerate(nodes):
                if self._written.get(node.id) != signature(node):
                    self._pending.messages[node.id] = (row.id, position, node)
        self._wake()

    def append(self, conversation: Conversation, node_id: str) -> None:
        """Note that an answer has grown; it is written within half a second. Costs next to nothing."""
        node = conversation.nodes[node_id]
        with self._lock:
            entry = self._pending.messages.get(node_id)
            known = node_id in self._written
        if entry is not None:
            return
        if not known:
            self.save(conversation)
            return
        with self._lock:
            self._pending.messages[node_id] = (conversation.id, -1, node)
        self._wake()

    def save_tabs(self, ids: Sequence[str], active: str | None) -> None:
        """Save which conversations are open, in order, and the active one."""
        with self._lock:
            self._pending.tabs = OpenTabs(tuple(ids), active)
        self._wake()

    def list_open_tabs(self) -> OpenTabs:
        """Return the tabs that were open in this window."""
        return self._ask(read_tabs, OpenTabs())

    def load(self, conversation_id: str) -> Conversation | None:
        """Read a conversation; an answer that was interrupted is "stopped" with its text."""
        conversation = self._ask(
            lambda database: read_conversation(database.connection, conversation_id), None
        )
        if conversation is not None:
            with self._lock:
                self._living[conversation.id] = conversation
                for node in conversation.nodes.values():
                    self._written[node.id] = signature(node)
        return conversation

    def recent(self, limit: int = 50) -> list[ConversationSummary]:
        """Return the conversations that hold messages or a draft, the last changed first."""
        return self._ask(lambda database: read_recent(database, limit), [])

    def search(self, query: str, limit: int = 50) -> list[ConversationSummary]:
        """Find conversations by title or text: every word (the last of a text may be a beginning)."""
        return self._ask(
            lambda database: search_conversations(database.connection, query, limit, database.searchable), []
        )

    def delete(self, conversation_id: str) -> bool:
        """Delete a conversation with all its messages; what still streams into it is not saved.

        False, and nothing is done, while another app that runs has it in a tab: what is written there
        would be left without the messages before it.
        """
        if self._ask(lambda database: is_open_elsewhere(database, conversation_id), False):
            return False
        with self._lock:
            self._deleted.add(conversation_id)
            self._living.pop(conversation_id, None)
            self._pending.conversations.pop(conversation_id, None)
            pending = self._pending.messages
            for node_id in [key for key, entry in pending.items() if entry[0] == conversation_id]:
                del pending[node_id]
        self._ask(lambda database: delete(database, conversation_id), None)
        return True

    def flush(self) -> bool:
        """Write everything that waits; True when it is on disk (or in memory, without a file)."""
        return self._ask(lambda _: not self._pending, False)

    def close(self, timeout: float = 5.0) -> None:
        """Write everything that waits and end the thread. Calling it again does nothing."""
        if self._thread.is_alive():
            self._inbox.put(None)
            self._thread.join(timeout)

    def _wake(self) -> None:
        self._inbox.put(_nothing)

    def _ask(self, question: Callable[[Database], _T], otherwise: _T) -> _T:
        """Run a question on the history's thread, after all that was saved before it."""
        if not self._thread.is_alive():
            return otherwise
        answer: Future[_T] = Future()

        def work() -> None:
            self._write_pending()
            try:
                answer.set_result(question(self._database))
            except BaseException as error:
                if isinstance(error, sqlite3.Error) and is_corrupt(error):
                    self._begin_anew()
                answer.set_exception(error)

        self._inbox.put(work)
        try:
            return answer.result(_ANSWER_SECONDS)
        except (sqlite3.Error, TimeoutError) as error:
            if not (isinstance(error, sqlite3.Error) and is_corrupt(error)):
                self._warn(f"{self.path}: the history did not answer ({error})")
            return otherwise

    def _run(self, opened: "Future[None]") -> None:
        try:
            self._database = open_database(self.path)
            self.window, self.warning = self._database.window, self._database.warning
        except BaseException as error:
            opened.set_exception(error)
            return
        try:
            recover(self._database)
        except sqlite3.Error as error:
            self.warning = f"{self.path}: unfinished answers could not be closed ({error})"
        opened.set_result(None)
        try:
            while self._serve():
                pass
        finally:
            self._write_pending()
            self._database.close()

    def _serve(self) -> bool:
        """Wait for work, gather what comes within `FLUSH_SECONDS`, write it; False at the end."""
        wait = max(0.05, self._retry_at - time.monotonic()) if self._pending else None
        try:
            item = self._inbox.get(timeout=wait)
        except queue.Empty:
            self._write_pending()
            return True
        deadline = time.monotonic() + FLUSH_SECONDS
        while item is _nothing:
            try:
                item = self._inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
        if item is None:
            return False
        if time.monotonic() >= self._retry_at:
            self._write_pending()
        item()
        return True

    def _write_pending(self) -> None:
        """Write everything that waits in one transaction; on failure keep it for the next try."""
        with self._lock:
            pending, self._pending = self._pending, Pending()
        if not pending:
            return
        try:
            written = write(self._database, pending)
        except sqlite3.Error as error:
            self._put_back(pending)
            self._failed(error)
            return
        except Exception as error:
            # A value that cannot be stored must not end the thread and with it all later saving.
            self._warn(f"{self.path}: a change could not be saved ({error})")
            return
        self._troubled = False
        with self._lock:
            self._written.update(written)

    def _put_back(self, pending: Pending) -> None:
        with self._lock:
            self._pending.conversations = pending.conversations | self._pending.conversations
            self._pending.messages = pending.messages | self._pending.messages
            if self._pending.tabs is None:
                self._pending.tabs = pending.tabs

    def _failed(self, error: sqlite3.Error) -> None:
        self._retry_at = time.monotonic() + _RETRY_SECONDS
        if is_corrupt(error):
            self._begin_anew()
        elif not self._troubled:
            self._troubled = True
            self._warn(f"{self.path}: the history cannot be written ({error}); the app keeps trying")

    def _begin_anew(self) -> None:
        """Move the damaged file aside and save all that the app still holds into a new one."""
        damaged = self._database
        damaged.close()
        moved = ""
        if self.path is not None and file_identity(self.path) == damaged.identity:
            moved = f"; it was moved to {move_aside(self.path)}, a new one begins"
        self._warn(f"{self.path}: the history is damaged{moved}")
        self._database = open_database(self.path)
        self.window = self._database.window
        if self._database.warning is not None:
            self._warn(self._database.warning)
        with self._lock:
            self._written.clear()
            living = list(self._living.values())
        self._retry_at = 0.0
        for conversation in living:
            self.save(conversation)

    def _warn(self, message: str) -> None:
        _log.warning("%s", message)
        if self.on_warning is not None:
            self.on_warning(message)


def _nothing() -> None:
    """The work of a mere wake-up."""
