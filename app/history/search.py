"""Searching the history: full text where SQLite has FTS5, plain comparison elsewhere."""

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice

from app.history.file.reading import text_of
from app.history.statements import ConversationSummary, holds_something, order, read_summary
from app.history.wanted import Wanted

_AROUND = 40


def search_conversations(
    connection: sqlite3.Connection, wanted: Wanted, limit: int, full_text: bool
) -> list[ConversationSummary]:
    """Return the conversations whose title or one of whose messages holds every word that is wanted.

    Pinned ones and then the last changed come first, each with its newest message found; no words find
    nothing.
    """
    if not wanted.words:
        return []
    found: dict[str, int] = {}
    if full_text:
        found = _newest(_full_text(connection, wanted), limit)
    # The index knows words and beginnings of words; the comparison also finds what stands inside
    # one, as in languages written without spaces.
    found = found or _newest(_plain(connection, wanted), limit)
    titled = _titled(connection, wanted, limit)
    lines = (read_summary(connection, key) for key in dict.fromkeys([*titled, *found]))
    summaries = sorted((line for line in lines if line is not None), key=order)
    return [_with_message(connection, summary, found, wanted.words) for summary in summaries[:limit]]


def _full_text(connection: sqlite3.Connection, wanted: Wanted) -> Iterable[tuple[str, int]]:
    # Quoted, a word is never read as query syntax; the star makes the last one a prefix.
    quoted = ['"' + word.replace('"', '""') + '"' for word in wanted.words]
    return connection.execute(
        f"""SELECT m.conversation, m.number FROM message_index
           JOIN messages m ON m.number = message_index.rowid JOIN conversations c ON c.id = m.conversation
           WHERE message_index MATCH ? AND {wanted.condition} ORDER BY message_index.rowid DESC""",
        (" ".join(quoted) + "*", *wanted.values),
    )


def _plain(connection: sqlite3.Connection, wanted: Wanted) -> Iterable[tuple[str, int]]:
    condition = " AND ".join("instr(lower(m.text), lower(?)) > 0" for _ in wanted.words)
    return connection.execute(
        f"""SELECT m.conversation, m.number FROM messages m JOIN conversations c ON c.id = m.conversation
            WHERE {condition} AND {wanted.condition} ORDER BY m.number DESC""",
        (*wanted.words, *wanted.values),
    )


def _newest(rows: Iterable[tuple[str, int]], limit: int) -> dict[str, int]:
    """Return the newest message found of each of at most `limit` conversations."""
    found: dict[str, int] = {}
    for conversation, number in rows:
        found.setdefault(conversation, number)
        if len(found) == limit:
            break
    return found


def _titled(connection: sqlite3.Connection, wanted: Wanted, limit: int) -> list[str]:
    folded = [word.casefold() for word in wanted.words]
    rows = connection.execute(
        f"""SELECT c.id, CAST(coalesce(c.title, '') AS TEXT) FROM conversations c
            WHERE {wanted.condition} ORDER BY c.pinned DESC, c.updated DESC""",
        wanted.values,
    )
    matching = (key for key, title in rows if all(word in title.casefold() for word in folded))
    return list(islice((key for key in matching if holds_something(connection, key)), limit))


def _with_message(
    connection: sqlite3.Connection, summary: ConversationSummary, found: dict[str, int], words: Sequence[str]
) -> ConversationSummary:
    number = found.get(summary.id)
    if number is None:
        return summary
    key, text = connection.execute("SELECT id, text FROM messages WHERE number = ?", (number,)).fetchone()
    return replace(summary, message_id=text_of(key), snippet=_snippet(text_of(text), words))


def _snippet(text: str, words: Sequence[str]) -> str:
    lowered = text.lower()
    found = [at for at in (lowered.find(word.lower()) for word in words) if at >= 0]
    begin = max(0, min(found, default=0) - _AROUND)
    end = begin + 3 * _AROUND
    middle = " ".join(text[begin:end].split())
    return ("…" if begin else "") + middle + ("…" if end < len(text) else "")
