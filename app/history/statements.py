"""What is asked about the history, in SQL. Runs on the history's own thread."""

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from app.chat.conversation import NEW_TITLE, Conversation
from app.chat.marks import NO_MARKS, Marks
from app.history.file.opening import Database
from app.history.file.reading import number_of, text_of, text_or_none
from app.history.file.rows import index_message
from app.history.file.windows import is_running
from app.history.pending import OpenTabs
from app.history.wanted import ALL, Wanted

HOLDS_SOMETHING = """(c.draft <> '' OR EXISTS (SELECT 1 FROM messages m WHERE m.conversation = c.id)
    OR EXISTS (SELECT 1 FROM drafts d WHERE d.conversation = c.id))"""
"""Condition on a conversation `c`: messages or a draft; an empty chat is worth no line."""
_SUMMARY = """SELECT c.id, c.title, c.model_path, c.updated,
    (SELECT count(*) FROM messages m WHERE m.conversation = c.id), c.pinned, c.archived,
    (SELECT group_concat(tag, ' ') FROM tags t WHERE t.conversation = c.id) FROM conversations c"""


@dataclass(frozen=True, slots=True)
class ConversationSummary:
    """One line of a list of conversations."""

    id: str
    title: str
    model_path: str | None
    updated: float
    messages: int
    marks: Marks = NO_MARKS
    message_id: str | None = None
    """The message that a search found, if it found one."""
    snippet: str = ""
    """The found message's text around the first word found."""


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


def read_tabs(database: Database) -> OpenTabs:
    """Return the tabs of this window."""
    rows = database.connection.execute(
        """SELECT conversation, active FROM open_tabs
           WHERE window = ? AND conversation IN (SELECT id FROM conversations WHERE deleted IS NULL)
           ORDER BY position""",
        (database.window,),
    ).fetchall()
    active = next((conversation for conversation, marked in rows if marked), None)
    return OpenTabs(tuple(conversation for conversation, _ in rows), active)


def read_recent(database: Database, limit: int, wanted: Wanted = ALL) -> list[ConversationSummary]:
    """Return the conversations that hold messages or a draft, pinned ones and then the last changed first."""
    rows = database.connection.execute(
        f"{_SUMMARY} WHERE {wanted.condition} AND {HOLDS_SOMETHING}"
        " ORDER BY c.pinned DESC, c.updated DESC LIMIT ?",
        (*wanted.values, limit),
    )
    return [_summary(row) for row in rows.fetchall()]


def with_waiting(
    found: list[ConversationSummary], waiting: Iterable[Conversation], limit: int
) -> list[ConversationSummary]:
    """Add to a list what could not be written yet."""
    lines = {summary.id: summary for summary in found}
    for chat in waiting:
        if chat.nodes or chat.draft:
            marks = lines[chat.id].marks if chat.id in lines else NO_MARKS
            lines[chat.id] = ConversationSummary(
                chat.id, chat.title, chat.model_path, chat.updated, len(chat.nodes), marks
            )
    return sorted(lines.values(), key=order)[:limit]


def order(summary: ConversationSummary) -> tuple[bool, float]:
    """Where a line stands: pinned ones first, then the last changed."""
    return not summary.marks.pinned, -summary.updated


def holds_something(connection: sqlite3.Connection, conversation_id: str) -> bool:
    """Tell whether a conversation has messages or a draft."""
    sql = f"SELECT 1 FROM conversations c WHERE c.id = ? AND {HOLDS_SOMETHING}"
    return connection.execute(sql, (conversation_id,)).fetchone() is not None


def read_summary(connection: sqlite3.Connection, conversation_id: str) -> ConversationSummary | None:
    """Return the line of one conversation."""
    row = connection.execute(f"{_SUMMARY} WHERE c.id = ?", (conversation_id,)).fetchone()
    return _summary(row) if row is not None else None


def _summary(row: tuple[Any, ...]) -> ConversationSummary:
    key, title, model, updated, messages, pinned, archived, tags = row
    marks = Marks(bool(pinned), bool(archived), tuple(sorted(text_of(tags).split())))
    return ConversationSummary(
        text_of(key), text_of(title) or NEW_TITLE, text_or_none(model), number_of(updated), messages, marks
    )


def write_marks(connection: sqlite3.Connection, conversation_id: str, marks: Marks) -> bool:
    """Change how a conversation is kept in order; False when it is not there."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = connection.execute(
            "UPDATE conversations SET pinned = ?, archived = ? WHERE id = ?",
            (int(marks.pinned), int(marks.archived), conversation_id),
        )
        connection.execute("DELETE FROM tags WHERE conversation = ?", (conversation_id,))
        for tag in marks.tags if found.rowcount else ():
            connection.execute("INSERT INTO tags (conversation, tag) VALUES (?, ?)", (conversation_id, tag))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return found.rowcount > 0


def bring_back(connection: sqlite3.Connection, conversation_id: str) -> bool:
    """Show a deleted conversation again; False when it is deleted for good."""
    sql = "UPDATE conversations SET deleted = NULL WHERE id = ? AND deleted IS NOT NULL"
    return connection.execute(sql, (conversation_id,)).rowcount > 0


def is_open_elsewhere(database: Database, conversation_id: str) -> bool:
    """Tell whether another app that runs now has a conversation in a tab."""
    path = database.path
    rows = database.connection.execute(
        """SELECT DISTINCT window FROM open_tabs
           WHERE conversation = ? AND window != ? AND typeof(window) = 'integer'""",
        (conversation_id, database.window),
    ).fetchall()
    return path is not None and any(is_running(path, window) for (window,) in rows)


def all_ids(connection: sqlite3.Connection) -> set[str]:
    """Return the id of every conversation."""
    return {text_of(key) for (key,) in connection.execute("SELECT id FROM conversations")}


def taken_ids(connection: sqlite3.Connection, conversation: Conversation) -> set[str]:
    """Return which ids of a conversation's messages are those of another conversation's."""
    sql = "SELECT 1 FROM messages WHERE id = ? AND conversation != ?"
    ids = (node_id for node_id in conversation.nodes)
    return {key for key in ids if connection.execute(sql, (key, conversation.id)).fetchone() is not None}
