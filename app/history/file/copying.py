"""Taking chats from one history file into another, from a damaged one row by row.

What is already there is not made poorer: a longer text of a message wins, and drafts are added.
Runs on the history's own thread.
"""

import logging
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.chat.conversation import title_from
from app.history.file.reading import number_of, stored_row, text_of
from app.history.file.rows import index_message

_PROBED = 10_000
"""Row numbers behind the last readable one that are tried one by one."""
_CHAT: Mapping[str, Any] = {
    "id": None,
    "title": "",
    "model_path": None,
    "system_prompt": "",
    "sampling": "",
    "leaf": None,
    "draft": "",
    "created": 0.0,
    "updated": 0.0,
    "pinned": 0,
    "archived": 0,
    "deleted": None,
}
_MESSAGE: Mapping[str, Any] = {
    "id": None,
    "conversation": None,
    "position": 0,
    "parent": None,
    "role": "user",
    "text": "",
    "reasoning": "",
    "token_ids": b"",
    "reasoning_tokens": 0,
    "status": "stopped",
    "error": None,
    "model": None,
    "created": 0.0,
    "stats": None,
    "above": None,
    "calls": None,
    "votes": None,
    "window": 0,
}
_TAB: Mapping[str, Any] = {
    "window": None,
    "position": None,
    "conversation": None,
    "active": 0,
    "read_only": 0,
}
"""Columns, and what stands in one that must not be empty and is."""
_log = logging.getLogger(__name__)
_Row = dict[str, Any]


@dataclass(slots=True)
class Copied:
    """How much was taken over."""

    chats: int = 0
    messages: int = 0

    def __bool__(self) -> bool:
        return bool(self.chats or self.messages)

    def __str__(self) -> str:
        chats = "1 chat" if self.chats == 1 else f"{self.chats:,} chats"
        return f"{chats}, {self.messages:,} message{'' if self.messages == 1 else 's'}"


def copy_history(
    source: sqlite3.Connection, target: sqlite3.Connection, *, searchable: bool, tabs: bool = False
) -> Copied:
    """Copy every readable row, in one transaction; `tabs`: the open tabs too."""
    copied = Copied()
    target.execute("BEGIN IMMEDIATE")
    try:
        for row in readable_rows(source, "conversations"):
            copied.chats += _copy_chat(target, _known(row, _CHAT))
        for row in readable_rows(source, "drafts"):
            _add_draft(target, text_of(row["conversation"]), text_of(row["text"]))
        for row in readable_rows(source, "tags"):
            _add_tag(target, text_of(row["conversation"]), text_of(row["tag"]))
        for row in readable_rows(source, "messages"):
            copied.messages += _copy_message(target, _known(row, _MESSAGE), searchable=searchable)
        for row in readable_rows(source, "open_tabs") if tabs else ():
            target.execute(
                "INSERT OR IGNORE INTO open_tabs (window, position, conversation, active, read_only)"
                " VALUES (:window, :position, :conversation, :active, :read_only)",
                _known(row, _TAB),
            )
        target.execute("COMMIT")
    except BaseException:
        if target.in_transaction:
            target.execute("ROLLBACK")
        raise
    return copied


def readable_rows(source: sqlite3.Connection, table: str) -> Iterator[_Row]:
    """Yield the rows of a table from both ends up to what is damaged, and what can be read in between."""
    last = -1
    try:
        for row in _select(source, f"SELECT rowid AS row_number, * FROM {table} ORDER BY rowid"):
            last = row["row_number"]
            yield row
        return
    except sqlite3.Error as error:
        _log.warning("table %s: not readable behind row %d (%s)", table, last, error)
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_IOERR):
            return
    first = last + 1 + _PROBED
    backwards = f"SELECT rowid AS row_number, * FROM {table} WHERE rowid > ? ORDER BY rowid DESC"
    try:
        for row in _select(source, backwards, last):
            first = row["row_number"]
            yield row
    except sqlite3.Error as error:
        _log.warning("table %s: not readable before row %d (%s)", table, first, error)
    for number in range(last + 1, min(first, last + 1 + _PROBED)):
        try:
            yield from _select(source, f"SELECT rowid AS row_number, * FROM {table} WHERE rowid = ?", number)
        except sqlite3.Error:
            continue


def _select(source: sqlite3.Connection, sql: str, *values: int) -> Iterator[_Row]:
    cursor = source.execute(sql, values)
    names = [column[0] for column in cursor.description]
    for found in cursor:
        yield dict(zip(names, found, strict=True))


def _known(row: _Row, columns: Mapping[str, Any]) -> _Row:
    values = {name: row.get(name) for name in columns}
    return {name: columns[name] if value is None else value for name, value in values.items()}


def _copy_chat(target: sqlite3.Connection, row: _Row) -> int:
    """Insert a chat or, where it is there, what is newer of it; return how many were inserted."""
    if not isinstance(row["id"], str):
        return 0
    current = stored_row(target, row["id"])
    if current is None:
        marks = ", ".join(f":{name}" for name in row)
        target.execute(f"INSERT INTO conversations ({', '.join(row)}) VALUES ({marks})", row)
        return 1
    if number_of(row["updated"]) > current.updated:
        target.execute(
            """UPDATE conversations SET title = :title, model_path = :model_path, leaf = :leaf,
                   system_prompt = :system_prompt, sampling = :sampling, updated = :updated
               WHERE id = :id""",
            row,
        )
    _add_draft(target, current.id, text_of(row["draft"]))
    return 0


def _add_draft(target: sqlite3.Connection, conversation_id: str, text: str) -> None:
    current = stored_row(target, conversation_id)
    if current is not None and text.strip() and text not in current.draft:
        draft = "\n\n".join(part for part in (current.draft, text) if part.strip())
        target.execute("UPDATE conversations SET draft = ? WHERE id = ?", (draft, conversation_id))


def _add_tag(target: sqlite3.Connection, conversation_id: str, tag: str) -> None:
    if stored_row(target, conversation_id) is not None:
        target.execute("INSERT OR IGNORE INTO tags (conversation, tag) VALUES (?, ?)", (conversation_id, tag))


def _copy_message(target: sqlite3.Connection, row: _Row, *, searchable: bool) -> int:
    """Insert a message, or its longer text; return how many were inserted."""
    if not isinstance(row["id"], str) or not isinstance(row["conversation"], str):
        return 0
    if row["status"] == "streaming":
        row["status"] = "stopped"
    _copy_owner(target, row)
    there = target.execute("SELECT 1 FROM messages WHERE id = ?", (row["id"],)).fetchone()
    marks = ", ".join(f":{name}" for name in row)
    target.execute(
        f"""INSERT INTO messages ({", ".join(row)}) VALUES ({marks})
            ON CONFLICT (id) DO UPDATE SET text = excluded.text, reasoning = excluded.reasoning,
                token_ids = excluded.token_ids, reasoning_tokens = excluded.reasoning_tokens,
                status = excluded.status, error = excluded.error, model = excluded.model,
                stats = excluded.stats, above = excluded.above, calls = excluded.calls,
                votes = excluded.votes
            WHERE length(excluded.text) + length(excluded.reasoning)
                  > length(messages.text) + length(messages.reasoning)""",
        row,
    )
    if searchable:
        index_message(target, row["id"])
    return 0 if there else 1


def _copy_owner(target: sqlite3.Connection, message: _Row) -> None:
    """Make a chat for a message whose own could not be read."""
    if stored_row(target, message["conversation"]) is None:
        row = dict(_CHAT) | {"id": message["conversation"], "title": title_from(text_of(message["text"]))}
        row |= {"created": message["created"], "updated": message["created"]}
        _copy_chat(target, row)
