"""From the threads that change conversations to the one that writes them: what waits, under one lock."""

import threading
import weakref

from app.chat.conversation import Conversation
from app.history.file.reading import Loaded
from app.history.file.rows import conversation_row
from app.history.pending import Known, OpenTabs, Pending, signature


class Outbox:
    """Takes changes at any time and hands them out together; may be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending = Pending()
        self._known = Known()
        self._living: weakref.WeakValueDictionary[str, Conversation] = weakref.WeakValueDictionary()
        self._deleted: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._pending)

    @property
    def known(self) -> Known:
        """What this window has read and written; only the writing thread changes the file by it."""
        return self._known

    def save(self, conversation: Conversation) -> None:
        """Take a conversation as it stands: its row and every message that changed."""
        row = conversation_row(conversation)
        nodes = list(conversation.nodes.values())
        with self._lock:
            if row.id in self._deleted:
                return
            self._living[row.id] = self._pending.conversations[row.id] = conversation
            self._pending.rows[row.id] = row
            for position, node in enumerate(nodes):
                if self._known.messages.get(node.id) != signature(node):
                    self._pending.messages[node.id] = (row.id, position, node)

    def append(self, conversation: Conversation, node_id: str) -> bool:
        """Take an answer that has grown; tell whether that is news."""
        node = conversation.nodes[node_id]
        with self._lock:
            if node_id in self._pending.messages or conversation.id in self._deleted:
                return False
            if node_id in self._known.messages:
                self._pending.conversations[conversation.id] = conversation
                self._pending.messages[node_id] = (conversation.id, -1, node)
                return True
        self.save(conversation)
        return True

    def save_tabs(self, tabs: OpenTabs) -> None:
        """Take the open tabs."""
        with self._lock:
            self._pending.tabs = tabs

    def discard(self, conversation_id: str) -> None:
        """Have a conversation deleted if nothing is in it; nothing more of it is taken."""
        with self._lock:
            self._deleted.add(conversation_id)
            self._living.pop(conversation_id, None)
            self._pending.forget(conversation_id)
            self._known.forget(conversation_id)
            self._pending.discarded.add(conversation_id)

    def hide(self, conversation_id: str) -> None:
        """Have a conversation deleted so that it can be brought back; what waits of it is written before."""
        with self._lock:
            self._deleted.add(conversation_id)
            self._living.pop(conversation_id, None)
            self._pending.hidden.add(conversation_id)

    def bring_back(self, conversation_id: str) -> None:
        """Take a conversation again."""
        with self._lock:
            self._deleted.discard(conversation_id)
            self._pending.hidden.discard(conversation_id)

    def read(self, conversation_id: str, loaded: Loaded | None) -> Conversation | None:
        """Return the conversation to go on with: what could not be written yet is newer than the file."""
        with self._lock:
            waiting = self._pending.conversations.get(conversation_id)
            if waiting is not None or loaded is None:
                return waiting
            self._deleted.discard(conversation_id)
            self._living[conversation_id] = loaded.conversation
            self._known.take(loaded)
            return loaded.conversation

    def waiting(self) -> list[Conversation]:
        """Return the conversations of which something waits."""
        with self._lock:
            return list(self._pending.conversations.values())

    def take(self) -> Pending:
        """Hand out everything that waits."""
        with self._lock:
            pending, self._pending = self._pending, Pending()
        return pending

    def put_back(self, pending: Pending) -> None:
        """Have what could not be written wait again, behind what has come since."""
        with self._lock:
            self._pending = pending.before(self._pending)

    def written(self, known: Known) -> None:
        """Remember what was written."""
        with self._lock:
            self._known.update(known)

    def begin_anew(self) -> None:
        """Take all that the app still holds once more: the file is another one."""
        with self._lock:
            self._known = Known()
            living = list(self._living.values())
        for conversation in living:
            self.save(conversation)
