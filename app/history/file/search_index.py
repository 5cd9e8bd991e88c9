"""The full-text indexes of the messages: one of words, one of all runs of three letters.

The second finds what stands inside a word. It holds the messages from that on which `parts_since` tells;
those before, of a history that was written without it, come in little by little. Where SQLite has no
FTS5 there is neither, where it has no trigrams only the first. Runs on the history's own thread.
"""

import sqlite3
from collections.abc import Iterable

_WORDS = "CREATE VIRTUAL TABLE IF NOT EXISTS message_index USING fts5(text)"
_PARTS = """CREATE VIRTUAL TABLE IF NOT EXISTS message_parts
    USING fts5(text, content = 'message_index', tokenize = 'trigram', detail = none)"""
_SINCE = "CREATE TABLE IF NOT EXISTS message_parts_since (one INTEGER PRIMARY KEY, number INTEGER NOT NULL)"
_FILLED_AT_ONCE = 100
_TITLES = """CREATE INDEX IF NOT EXISTS conversations_titles
    ON conversations (pinned DESC, updated DESC, archived, deleted, title, id)"""
"""All that is looked at of every conversation, and in the order of lists: else each row is read for it."""
LETTERS = 3
"""Length of what the index of parts is made of."""


def create_search_index(connection: sqlite3.Connection) -> bool:
    """Make sure that the indexes exist; False where SQLite was built without FTS5."""
    try:
        connection.execute(_WORDS)
    except sqlite3.OperationalError as error:
        if "fts5" in str(error):
            return False
        raise
    connection.execute(_SINCE)
    connection.execute(_TITLES)
    try:
        connection.execute(_PARTS)
        connection.execute("SELECT 1 FROM message_parts LIMIT 0")
    except sqlite3.OperationalError as error:
        if "tokenizer" not in str(error):
            raise
        # What this program writes will not be in it, so that whoever has trigrams begins anew.
        connection.execute("DELETE FROM message_parts_since")
    else:
        _begin_parts(connection)
    return True


def _begin_parts(connection: sqlite3.Connection) -> None:
    """Begin the index of parts anew unless it has what the index of words has from one message on."""
    since = parts_since(connection)
    words, parts = (
        connection.execute(f"SELECT coalesce(max(id), 0) FROM {table}_docsize").fetchone()[0]
        for table in ("message_index", "message_parts")
    )
    if since is not None and (words < since or words == parts):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute("INSERT INTO message_parts (message_parts) VALUES ('delete-all')")
        connection.execute(
            """INSERT OR REPLACE INTO message_parts_since
               SELECT 0, coalesce(max(id), 0) + 1 FROM message_index_docsize"""
        )
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def parts_since(connection: sqlite3.Connection) -> int | None:
    """Return the number of the first message in the index of parts; None where there is no such index."""
    row = connection.execute("SELECT number FROM message_parts_since").fetchone()
    return row[0] if row is not None else None


def index_text(connection: sqlite3.Connection, number: int, text: str) -> None:
    """Put a message's text into the indexes, in place of what stood there."""
    unindex(connection, [number])
    connection.execute("INSERT INTO message_index (rowid, text) VALUES (?, ?)", (number, text))
    since = parts_since(connection)
    if since is not None and number >= since:
        connection.execute("INSERT INTO message_parts (rowid, text) VALUES (?, ?)", (number, text))


def unindex(connection: sqlite3.Connection, numbers: Iterable[int]) -> None:
    """Take messages out of the indexes."""
    since = parts_since(connection)
    for number in numbers:
        # First, as the index of parts reads from the other what it has to forget.
        if since is not None and number >= since:
            connection.execute("DELETE FROM message_parts WHERE rowid = ?", (number,))
        connection.execute("DELETE FROM message_index WHERE rowid = ?", (number,))


def fill_parts(connection: sqlite3.Connection) -> bool:
    """Bring some older messages into the index of parts; tell whether there are more."""
    if not parts_since(connection):
        return False
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another window may fill it too.
        since = parts_since(connection) or 0
        rows = connection.execute(
            "SELECT rowid, text FROM message_index WHERE rowid < ? ORDER BY rowid DESC LIMIT ?",
            (since, _FILLED_AT_ONCE),
        ).fetchall()
        connection.executemany("INSERT INTO message_parts (rowid, text) VALUES (?, ?)", rows)
        more = len(rows) == _FILLED_AT_ONCE
        connection.execute("UPDATE message_parts_since SET number = ?", (rows[-1][0] if more else 0,))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return more
