"""What is asked about the history, in SQL. Runs on the history's own thread."""

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from app.chat.conversation import NEW_TITLE, Conversation
from app.history.opening import Database
from app.history.pending import OpenTabs
from app.history.reading import number_of, text_of, text_or_none
from app.history.rows import index_message
from app.history.windows import is_running

HOLDS_SOMETHING = """(c.draft <> '' OR EXISTS (SELECT 1 FROM messages m WHERE m.conversation = c.id)
    OR EXISTS (SELECT 1 FROM drafts d WHERE d.conversation = c.id))"""
"""Condition on a conversation `c`: messages or a draft; an empty chat is worth no line."""
_SUMMARY = """SELECT c.id, c.title, c.model_path, c.updated,
    (SELECT count(*) FROM messages m WHERE m.conversation = c.id) FROM conversations c"""


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
           WHERE window = ? AND conversation IN (SELECT id FROM conversations) ORDER BY position""",
        (database.window,),
    ).fetchall()
    active = next((conversation for conversation, marked in rows if marked), None)
    return OpenTabs(tuple(conversation for conversation, _ in rows), active)


def read_recent(database: Database, limit: int) -> list[ConversationSummary]:
    """Return the conversations that hold messages or a draft, the last changed first."""
    rows = database.connection.execute(
        f"{_SUMMARY} WHERE {HOLDS_SOMETHING} ORDER BY c.updated DESC LIMIT ?", (limit,)
    )
    return [_summary(row) for row in rows.fetchall()]


def with_waiting(
    found: list[ConversationSummary], waiting: Iterable[Conversation], limit: int
) -> list[ConversationSummary]:
    """Add to a list what could not be written yet."""
    lines = {summary.id: summary for summary in found}
    for chat in waiting:
        if chat.nodes or chat.draft:
            lines[chat.id] = ConversationSummary(
                chat.id, chat.title, chat.model_path, chat.updated, len(chat.nodes)
            )
    return sorted(lines.values(), key=lambda summary: -summary.updated)[:limit]


def holds_something(connection: sqlite3.Connection, conversation_id: str) -> bool:
    """Tell whether a conversation has messages or a draft."""
    sql = f"SELECT 1 FROM conversations c WHERE c.id = ? AND {HOLDS_SOMETHING}"
    return connection.execute(sql, (conversation_id,)).fetchone() is not None


def read_summary(connection: sqlite3.Connection, conversation_id: str) -> ConversationSummary | None:
    """Return the line of one conversation."""
    row = connection.execute(f"{_SUMMARY} WHERE c.id = ?", (conversation_id,)).fetchone()
    return _summary(row) if row is not None else None


def _summary(row: tuple[Any, ...]) -> ConversationSummary:
    key, title, model, updated, messages = row
    return ConversationSummary(
        text_of(key), text_of(title) or NEW_TITLE, text_or_none(model), number_of(updated), messages
    )


def is_open_elsewhere(database: Database, conversation_id: str) -> bool:
    """Tell whether another app that runs now has a conversation in a tab."""
    path = database.path
    rows = database.connection.execute(
        """SELECT DISTINCT window FROM open_tabs
           WHERE conversation = ? AND window != ? AND typeof(window) = 'integer'""",
        (conversation_id, database.window),
    ).fetchall()
    return path is not None and any(is_running(path, window) for (window,) in rows)
