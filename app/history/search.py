"""Searching the history: by full-text indexes where SQLite has them, by plain comparison elsewhere."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from app.history.file.reading import text_of
from app.history.file.search_index import LETTERS, parts_since
from app.history.statements import ConversationSummary, holds_something, order, read_summary
from app.history.wanted import Wanted

_AROUND = 40
_NEWEST = 5000
"""Messages in which a mere letter is looked for first."""
_CHATS = 2
"""The same in chats with a tag, of so many times as many as are wanted."""
_MOST_TRIGRAMS = 32
_LIKE = "m.text LIKE ? ESCAPE '\\'"
"""Condition on a message `m`, blind to the case of ASCII letters."""
_TITLED = "(c.title LIKE ? ESCAPE '\\' OR c.title GLOB '*[^ -~]*')"
"""Condition on a conversation `c`: a word in its title, or letters there whose case SQLite does not know."""


def search_conversations(
    connection: sqlite3.Connection, wanted: Wanted, limit: int, full_text: bool
) -> list[ConversationSummary]:
    """Return the conversations whose title or one of whose messages holds every word that is wanted.

    Pinned ones and then the last changed come first, each with its newest message found; no words find
    nothing.
    """
    if not wanted.words:
        return []
    found = _found(connection, wanted, limit, full_text)
    titled = _titled(connection, wanted, limit)
    lines = (read_summary(connection, key) for key in dict.fromkeys([*titled, *found]))
    summaries = sorted((line for line in lines if line is not None), key=order)
    return [_with_message(connection, summary, found, wanted.words) for summary in summaries[:limit]]


def _found(connection: sqlite3.Connection, wanted: Wanted, limit: int, full_text: bool) -> dict[str, int]:
    """Return the newest message found of each of at most `limit` conversations."""
    if not full_text:
        return _newest(_compared(connection, wanted), limit)
    if all(len(word) == 1 for word in wanted.words):
        # For the beginning of half of all words the index takes longer than the newest messages do, or with
        # a tag the messages of some chats that have it.
        rows = (
            _compared_by_chat(connection, wanted, _CHATS * limit)
            if wanted.tags
            else _compared(connection, wanted, newest=_NEWEST)
        )
        found = _newest(rows, limit)
        if len(found) == limit:
            return found
    # The index of words knows their beginnings; the other one also finds what stands inside one, as in
    # languages written without spaces.
    return _newest(_full_text(connection, wanted), limit) or _newest(_inside(connection, wanted), limit)


def _full_text(connection: sqlite3.Connection, wanted: Wanted) -> Iterable[tuple[str, int]]:
    """Ask the index of words; a mere letter beside words is compared."""
    words = [word for word in wanted.words if len(word) > 1] or list(wanted.words)
    letters = [word for word in wanted.words if word not in words]
    # Quoted, a word is never read as query syntax; the star makes the last one a prefix.
    quoted = ['"' + word.replace('"', '""') + '"' for word in words]
    star = "*" if words[-1] == wanted.words[-1] else ""
    compared = "".join(f" AND {_LIKE}" for _ in letters)
    return connection.execute(
        f"""SELECT m.conversation, m.number FROM message_index
           JOIN messages m ON m.number = message_index.rowid
           WHERE message_index MATCH ?{compared} AND {_chosen(wanted)} ORDER BY message_index.rowid DESC""",
        (" ".join(quoted) + star, *map(_pattern, letters), *wanted.values),
    )


def _inside(connection: sqlite3.Connection, wanted: Wanted) -> Iterator[tuple[str, int]]:
    """Ask the index of parts for messages that hold every word anywhere, and look at those it lacks."""
    since, parts = parts_since(connection), _trigrams(wanted.words)
    if since is None or not parts:
        yield from _compared(connection, wanted)
        return
    folded = [word.casefold() for word in wanted.words]
    rows = connection.execute(
        f"""SELECT m.conversation, m.number, m.text FROM message_parts
           JOIN messages m ON m.number = message_parts.rowid
           WHERE message_parts MATCH ? AND {_chosen(wanted)} ORDER BY message_parts.rowid DESC""",
        (" AND ".join(parts), *wanted.values),
    )
    for conversation, number, text in rows:
        lowered = text_of(text).casefold()
        if all(word in lowered for word in folded):
            yield conversation, number
    yield from _compared(connection, wanted, before=since)


def _trigrams(words: Sequence[str]) -> list[str]:
    """Return what the index of parts has of words, quoted; a word of two letters has nothing."""
    starts = ((word, at) for word in words for at in range(len(word) - LETTERS + 1))
    parts = dict.fromkeys(word[at : at + LETTERS].replace('"', '""') for word, at in starts)
    return [f'"{part}"' for part in islice(parts, _MOST_TRIGRAMS)]


def _compared(
    connection: sqlite3.Connection, wanted: Wanted, *, newest: int | None = None, before: int | None = None
) -> Iterable[tuple[str, int]]:
    """Look at the messages themselves: at so many of the newest, or those before a number, or all."""
    where = [_LIKE] * len(wanted.words) + [_chosen(wanted)]
    if newest is not None:
        where.append(f"m.number > (SELECT max(number) FROM messages) - {newest}")
    if before is not None:
        where.append(f"m.number < {before}")
    return connection.execute(
        f"""SELECT m.conversation, m.number FROM messages m
            WHERE {" AND ".join(where)} ORDER BY m.number DESC""",
        (*map(_pattern, wanted.words), *wanted.values),
    )


def _compared_by_chat(
    connection: sqlite3.Connection, wanted: Wanted, chats: int
) -> Iterator[tuple[str, int]]:
    """Look at the messages of so many chats, the last changed first."""
    rows = connection.execute(
        f"""SELECT chosen.id, (SELECT m.number FROM messages m WHERE m.conversation = chosen.id
                AND {" AND ".join([_LIKE] * len(wanted.words))} ORDER BY m.position DESC LIMIT 1)
            FROM (SELECT c.id FROM conversations c WHERE {wanted.condition}
                ORDER BY c.pinned DESC, c.updated DESC LIMIT {chats}) chosen""",
        (*map(_pattern, wanted.words), *wanted.values),
    )
    return ((conversation, number) for conversation, number in rows if number is not None)


def _chosen(wanted: Wanted) -> str:
    """Return the condition on a message `m` that its conversation is wanted.

    The few that have a tag are found once; of all others each message's own is looked at.
    """
    if wanted.tags:
        return f"m.conversation IN (SELECT c.id FROM conversations c WHERE {wanted.condition})"
    return f"EXISTS (SELECT 1 FROM conversations c WHERE c.id = m.conversation AND {wanted.condition})"


def _pattern(word: str) -> str:
    """Return what `_LIKE` compares a message with."""
    for special in "\\%_":
        word = word.replace(special, f"\\{special}")
    return f"%{word}%"


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
    plain = [word for word in wanted.words if word.isascii()]
    rows = connection.execute(
        f"""SELECT c.id, CAST(coalesce(c.title, '') AS TEXT) FROM conversations c
            WHERE {" AND ".join([*[_TITLED] * len(plain), wanted.condition])}
            ORDER BY c.pinned DESC, c.updated DESC""",
        (*map(_pattern, plain), *wanted.values),
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
