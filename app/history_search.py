"""Searching the history: full text where SQLite has FTS5, plain comparison elsewhere."""

import sqlite3
from dataclasses import dataclass

_AROUND = 40
_Row = tuple[str, str, str, str, str, float]


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A message that was found; `snippet` is the text around the first word found."""

    conversation_id: str
    message_id: str
    title: str
    role: str
    snippet: str
    updated: float


def search_messages(
    connection: sqlite3.Connection, query: str, limit: int, full_text: bool
) -> list[SearchHit]:
    """Return the messages that hold every word of the query, best first; no words find nothing."""
    words = query.replace("\0", " ").split()
    if not words:
        return []
    rows: list[_Row] = []
    if full_text:
        rows = _full_text(connection, words, limit)
    # The index knows words and beginnings of words; the comparison also finds what stands inside
    # one, as in languages written without spaces.
    rows = rows or _plain(connection, words, limit)
    return [
        SearchHit(conversation, message, title, role, _snippet(text, words), updated)
        for conversation, message, title, role, text, updated in rows
    ]


def _full_text(connection: sqlite3.Connection, words: list[str], limit: int) -> list[_Row]:
    # Quoted, a word is never read as query syntax; the star makes the last one a prefix.
    quoted = ['"' + word.replace('"', '""') + '"' for word in words]
    sql = """SELECT m.conversation, m.id, c.title, m.role, m.text, c.updated
        FROM message_index JOIN messages m ON m.number = message_index.rowid
        JOIN conversations c ON c.id = m.conversation
        WHERE message_index MATCH ? ORDER BY rank LIMIT ?"""
    return connection.execute(sql, (" ".join(quoted) + "*", limit)).fetchall()


def _plain(connection: sqlite3.Connection, words: list[str], limit: int) -> list[_Row]:
    condition = " AND ".join("instr(lower(m.text), lower(?)) > 0" for _ in words)
    sql = f"""SELECT m.conversation, m.id, c.title, m.role, m.text, c.updated
        FROM messages m JOIN conversations c ON c.id = m.conversation
        WHERE {condition} ORDER BY c.updated DESC LIMIT ?"""
    return connection.execute(sql, (*words, limit)).fetchall()


def _snippet(text: str, words: list[str]) -> str:
    lowered = text.lower()
    found = [at for at in (lowered.find(word.lower()) for word in words) if at >= 0]
    begin = max(0, min(found, default=0) - _AROUND)
    end = begin + 3 * _AROUND
    middle = " ".join(text[begin:end].split())
    return ("…" if begin else "") + middle + ("…" if end < len(text) else "")
