"""Searching the history: full text where SQLite has FTS5, plain comparison elsewhere."""

import sqlite3
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice

from app.history.reading import text_of
from app.history.statements import ConversationSummary, holds_something, read_summary

_AROUND = 40


def search_conversations(
    connection: sqlite3.Connection, query: str, limit: int, full_text: bool
) -> list[ConversationSummary]:
    """Return the conversations whose title or one of whose messages holds every word of the query.

    The last changed come first, each with its newest message found; no words find nothing.
    """
    words = query.replace("\0", " ").split()
    if not words:
        return []
    found: dict[str, int] = {}
    if full_text:
        found = _newest(_full_text(connection, words), limit)
    # The index knows words and beginnings of words; the comparison also finds what stands inside
    # one, as in languages written without spaces.
    found = found or _newest(_plain(connection, words), limit)
    titled = _titled(connection, words, limit)
    lines = (read_summary(connection, key) for key in dict.fromkeys([*titled, *found]))
    summaries = [line for line in lines if line is not None]
    summaries.sort(key=lambda summary: -summary.updated)
    return [_with_message(connection, summary, found, words) for summary in summaries[:limit]]


def _full_text(connection: sqlite3.Connection, words: list[str]) -> Iterable[tuple[str, int]]:
    # Quoted, a word is never read as query syntax; the star makes the last one a prefix.
    quoted = ['"' + word.replace('"', '""') + '"' for word in words]
    return connection.execute(
        """SELECT m.conversation, m.number FROM message_index
           JOIN messages m ON m.number = message_index.rowid
           WHERE message_index MATCH ? ORDER BY message_index.rowid DESC""",
        (" ".join(quoted) + "*",),
    )


def _plain(connection: sqlite3.Connection, words: list[str]) -> Iterable[tuple[str, int]]:
    condition = " AND ".join("instr(lower(text), lower(?)) > 0" for _ in words)
    return connection.execute(
        f"SELECT conversation, number FROM messages WHERE {condition} ORDER BY number DESC", words
    )


def _newest(rows: Iterable[tuple[str, int]], limit: int) -> dict[str, int]:
    """Return the newest message found of each of at most `limit` conversations."""
    found: dict[str, int] = {}
    for conversation, number in rows:
        found.setdefault(conversation, number)
        if len(found) == limit:
            break
    return found


def _titled(connection: sqlite3.Connection, words: list[str], limit: int) -> list[str]:
    folded = [word.casefold() for word in words]
    rows = connection.execute(
        "SELECT id, CAST(coalesce(title, '') AS TEXT) FROM conversations ORDER BY updated DESC"
    )
    matching = (key for key, title in rows if all(word in title.casefold() for word in folded))
    return list(islice((key for key in matching if holds_something(connection, key)), limit))


def _with_message(
    connection: sqlite3.Connection, summary: ConversationSummary, found: dict[str, int], words: list[str]
) -> ConversationSummary:
    number = found.get(summary.id)
    if number is None:
        return summary
    key, text = connection.execute("SELECT id, text FROM messages WHERE number = ?", (number,)).fetchone()
    return replace(summary, message_id=text_of(key), snippet=_snippet(text_of(text), words))


def _snippet(text: str, words: list[str]) -> str:
    lowered = text.lower()
    found = [at for at in (lowered.find(word.lower()) for word in words) if at >= 0]
    begin = max(0, min(found, default=0) - _AROUND)
    end = begin + 3 * _AROUND
    middle = " ".join(text[begin:end].split())
    return ("…" if begin else "") + middle + ("…" if end < len(text) else "")
