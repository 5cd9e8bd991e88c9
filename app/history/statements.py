"""What is written and asked about the history, in SQL. Runs on the history's own thread."""

import sqlite3
from dataclasses import dataclass, field

from app.chat.conversation import MessageNode, Status
from app.history.opening import Database, is_running
from app.history.rows import ConversationRow, index_message, write_conversation, write_message

_HOLDS_SOMETHING = "(c.draft <> '' OR EXISTS (SELECT 1 FROM messages m WHERE m.conversation = c.id))"
"""Condition on a conversation `c`: messages or a draft; an empty chat is worth no line."""
_SUMMARY = """SELECT c.id, c.title, c.model_path, c.updated,
    (SELECT count(*) FROM messages m WHERE m.conversation = c.id) FROM conversations c"""
Signature = tuple[object, ...]
"""Tells whether a message has changed since it was written."""


@dataclass(frozen=True, slots=True)
class OpenTabs:
    """The tabs of the last time: conversation ids in order, and the active one."""

    ids: tuple[str, ...] = ()
    active: str | None = None


@dataclass(frozen=True, slots=True)
class ConversationSummary:
    """One line of a list of conversations."""

    id: str
    title: str
    model_path: str | None
    updated: float
    messages: int
    message_id: str | None = None
    """The message that a search found, if it found one."""
    snippet: str = ""
    """The found message's text around the first word found."""


@dataclass(slots=True)
class Pending:
    """What waits to be written; the newest state of a thing replaces the older."""

    conversations: dict[str, ConversationRow] = field(default_factory=dict)
    messages: dict[str, tuple[str, int, MessageNode]] = field(default_factory=dict)
    tabs: OpenTabs | None = None

    def __bool__(self) -> bool:
        return bool(self.conversations or self.messages or self.tabs is not None)


def signature(node: MessageNode) -> Signature:
    """Return what changes whenever the message does."""
    return (node.status, len(node.text), len(node.reasoning), len(node.token_ids), node.error, node.stats)


def write(database: Database, pending: Pending) -> dict[str, Signature]:
    """Write all of it in one transaction; return the signatures of the messages written."""
    connection = database.connection
    written: dict[str, Signature] = {}
    connection.execute("BEGIN IMMEDIATE")
    try:
        for row in pending.conversations.values():
            write_conversation(connection, row)
        for conversation_id, position, node in pending.messages.values():
            # Taken before the row: what grows meanwhile makes the next save write it again.
            written[node.id] = signature(node)
            write_message(connection, conversation_id, position, node, database.window)
            if database.searchable and node.status is not Status.STREAMING:
                index_message(connection, node.id)
        if pending.tabs is not None:
            _write_tabs(database, pending.tabs)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return written


def recover(database: Database) -> None:
    """Mark the answers that this window's last app left unfinished as stopped."""
    connection = database.connection
    rows = connection.execute(
        "SELECT id FROM messages WHERE status = 'streaming' AND window = ?", (database.window,)
    ).fetchall()
    for (node_id,) in rows:
        connection.execute("UPDATE messages SET status = 'stopped' WHERE id = ?", (node_id,))
        if database.searchable:
            index_message(connection, node_id)


def _write_tabs(database: Database, tabs: OpenTabs) -> None:
    database.connection.execute("DELETE FROM open_tabs WHERE window = ?", (database.window,))
    database.connection.executemany(
        "INSERT INTO open_tabs VALUES (?, ?, ?, ?)",
        [(database.window, number, tab, int(tab == tabs.active)) for number, tab in enumerate(tabs.ids)],
    )


def read_tabs(database: Database) -> OpenTabs:
    """Return the tabs of this window."""
    rows = database.connection.execute(
        """SELECT conversation, active FROM open_tabs
           WHERE window = ? AND conversation IN (SELECT id FROM conversations) ORDER BY position""",
        (database.window,),
    ).fetchall()
    active = next((conversation for conversation, marked in rows if marked), None)
    return OpenTabs(tuple(conversation for conversation, _ in rows), active)


def read_recent(database: Database, limit: int) -> list[ConversationSummary]:
    """Return the conversations that hold messages or a draft, the last changed first."""
    rows = database.connection.execute(
        f"{_SUMMARY} WHERE {_HOLDS_SOMETHING} ORDER BY c.updated DESC LIMIT ?", (limit,)
    )
    return [ConversationSummary(*row) for row in rows.fetchall()]


def holds_something(connection: sqlite3.Connection, conversation_id: str) -> bool:
    """Tell whether a conversation has messages or a draft."""
    sql = f"SELECT 1 FROM conversations c WHERE c.id = ? AND {_HOLDS_SOMETHING}"
    return connection.execute(sql, (conversation_id,)).fetchone() is not None


def read_summary(connection: sqlite3.Connection, conversation_id: str) -> ConversationSummary:
    """Return the line of one conversation, which must be there."""
    row = connection.execute(f"{_SUMMARY} WHERE c.id = ?", (conversation_id,)).fetchone()
    return ConversationSummary(*row)


def is_open_elsewhere(database: Database, conversation_id: str) -> bool:
    """Tell whether another app that runs now has a conversation in a tab."""
    path = database.path
    rows = database.connection.execute(
        "SELECT DISTINCT window FROM open_tabs WHERE conversation = ? AND window != ?",
        (conversation_id, database.window),
    ).fetchall()
    return path is not None and any(is_running(path, window) for (window,) in rows)


def delete(database: Database, conversation_id: str) -> None:
    """Delete a conversation, its messages and their place in the index."""
    connection = database.connection
    connection.execute("BEGIN IMMEDIATE")
    if database.searchable:
        connection.execute(
            "DELETE FROM message_index WHERE rowid IN (SELECT number FROM messages WHERE conversation = ?)",
            (conversation_id,),
        )
    connection.execute("DELETE FROM conversations WHERE id = ?", (conversation_id,))
    connection.execute("COMMIT")
