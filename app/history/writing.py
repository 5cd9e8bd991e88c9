"""One batch of changes into the file, in one transaction. Runs on the history's own thread."""

import sqlite3
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace

from app.chat.conversation import Conversation, MessageNode, Status
from app.history.file.opening import Database
from app.history.file.reading import is_hidden, stored_row
from app.history.file.rows import (
    ConversationRow,
    changes,
    conversation_row,
    index_message,
    insert_conversation,
    update_conversation,
    write_message,
)
from app.history.file.search_index import unindex
from app.history.pending import Known, OpenTabs, Pending, signature
from app.history.statements import HOLDS_SOMETHING, bring_back

_Messages = list[tuple[int, MessageNode]]


@dataclass(slots=True)
class Written:
    """What a batch has come to."""

    known: Known = field(default_factory=Known)
    brought_back: list[str] = field(default_factory=list)
    """Titles of conversations that another window had deleted."""
    refused: list[str] = field(default_factory=list)
    """What could not be stored, and why: a value, not the file, is the reason."""


def write(database: Database, pending: Pending, known: Known) -> Written:
    """Write all but the conversations that cannot be stored, or, on trouble with the file, nothing."""
    connection = database.connection
    written = Written()
    messages: defaultdict[str, _Messages] = defaultdict(list)
    for conversation_id, position, node in pending.messages.values():
        messages[conversation_id].append((position, node))
    connection.execute("BEGIN IMMEDIATE")
    try:
        for key, conversation in pending.conversations.items():
            part = Written()
            connection.execute("SAVEPOINT one")
            try:
                _Writer(database, known, part).write(conversation, pending.rows.get(key), messages[key])
            except Exception as error:
                if _is_the_file(error):
                    raise
                connection.execute("ROLLBACK TO one")
                written.refused.append(f"“{conversation.title}”: {error}")
            else:
                written.known.update(part.known)
                written.brought_back += part.brought_back
            connection.execute("RELEASE one")
        for conversation_id in pending.hidden:
            _hide(connection, conversation_id)
        for conversation_id in pending.discarded:
            _discard(database, conversation_id)
        if pending.tabs is not None:
            _write_tabs(database, pending.tabs)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return written


def _is_the_file(error: Exception) -> bool:
    values = (sqlite3.DataError, sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError)
    return isinstance(error, sqlite3.Error) and not isinstance(error, values)


@dataclass(slots=True)
class _Writer:
    """Writes one conversation's changes."""

    database: Database
    known: Known
    written: Written

    def write(self, conversation: Conversation, row: ConversationRow | None, messages: _Messages) -> None:
        """Write the row, if there is one, and the messages.

        A conversation that another window has deleted comes back whole when something has changed in it
        here, else not at all.
        """
        connection = self.database.connection
        current = stored_row(connection, conversation.id)
        hidden = current is not None and is_hidden(connection, conversation.id)
        base = self.known.rows.get(conversation.id)
        if (current is None or hidden) and base is not None:
            if not self._changed(row, base, messages):
                return
            self.written.brought_back.append(conversation.title)
        if current is None:
            row = row or conversation_row(conversation)
            messages = list(enumerate(list(conversation.nodes.values())))
            insert_conversation(connection, row)
            self.written.known.rows[row.id] = row
        else:
            bring_back(connection, conversation.id)
            if row is not None:
                self._update(current, row, base)
        for position, node in messages:
            self._write_message(conversation.id, position, node)

    def _changed(self, row: ConversationRow | None, base: ConversationRow, messages: _Messages) -> bool:
        changed = (self.known.messages.get(node.id) != signature(node) for _, node in messages)
        return any(changed) or (row is not None and bool(changes(row, base)))

    def _update(self, current: ConversationRow, row: ConversationRow, base: ConversationRow | None) -> None:
        changed = changes(row, base)
        if self.known.drafts.get(row.id):
            changed["draft"] = row.draft
        if "draft" in changed and not self._may_write_draft(current, row, base):
            # The draft of this window goes on beside the row's, which is another's.
            assert base is not None
            del changed["draft"]
            row = replace(row, draft=base.draft)
        if changed or row.updated > current.updated:
            update_conversation(self.database.connection, current, row, changed)
        self.written.known.rows[row.id] = row

    def _may_write_draft(
        self, current: ConversationRow, row: ConversationRow, base: ConversationRow | None
    ) -> bool:
        """Tell whether the row's draft is this window's to change; otherwise keep the text beside it."""
        connection, window = self.database.connection, self.database.window
        mine = current.draft in ("", row.draft) or base is None or current.draft == base.draft
        for other, text in self.known.drafts.get(row.id, {}).items():
            # One that its window has written anew since is left to it.
            connection.execute(
                "DELETE FROM drafts WHERE conversation = ? AND window = ? AND text = ?", (row.id, other, text)
            )
        beside = {window: row.draft} if row.draft and not mine else {}
        self.written.known.drafts[row.id] = beside
        if beside:
            connection.execute(
                "INSERT OR REPLACE INTO drafts (conversation, window, text) VALUES (?, ?, ?)",
                (row.id, window, row.draft),
            )
        return mine

    def _write_message(self, conversation_id: str, position: int, node: MessageNode) -> None:
        # Taken before the row: what grows meanwhile makes the next save write it again.
        self.written.known.messages[node.id] = signature(node)
        write_message(self.database.connection, conversation_id, position, node, self.database.window)
        if self.database.searchable and node.status is not Status.STREAMING:
            index_message(self.database.connection, node.id)


def _delete(database: Database, conversation_id: str) -> None:
    """Delete a conversation, its messages and their place in the index."""
    if database.searchable:
        found = database.connection.execute(
            "SELECT number FROM messages WHERE conversation = ?", (conversation_id,)
        )
        unindex(database.connection, [number for (number,) in found.fetchall()])
    database.connection.execute("DELETE FROM conversations WHERE id = ?", (conversation_id,))


def delete_all_hidden(database: Database, before: float) -> None:
    """Delete for good what was deleted before a time and not brought back."""
    found = database.connection.execute("SELECT id FROM conversations WHERE deleted < ?", (before,))
    for (conversation_id,) in found.fetchall():
        _delete(database, conversation_id)


def delete_hidden(database: Database, conversation_id: str) -> None:
    """Delete a conversation for good unless it was brought back."""
    if is_hidden(database.connection, conversation_id):
        _delete(database, conversation_id)


def _hide(connection: sqlite3.Connection, conversation_id: str) -> None:
    connection.execute("UPDATE conversations SET deleted = ? WHERE id = ?", (time.time(), conversation_id))
    connection.execute("DELETE FROM open_tabs WHERE conversation = ?", (conversation_id,))


def _discard(database: Database, conversation_id: str) -> None:
    """Delete a conversation unless it holds something, if only what was not understood."""
    database.connection.execute(
        f"DELETE FROM conversations AS c WHERE c.id = ? AND NOT {HOLDS_SOMETHING}", (conversation_id,)
    )


def _write_tabs(database: Database, tabs: OpenTabs) -> None:
    database.connection.execute("DELETE FROM open_tabs WHERE window = ?", (database.window,))
    database.connection.executemany(
        "INSERT INTO open_tabs (window, position, conversation, active, read_only) VALUES (?, ?, ?, ?, ?)",
        [
            (database.window, number, tab, int(tab == tabs.active), int(tab in tabs.read_only))
            for number, tab in enumerate(tabs.ids)
        ],
    )
