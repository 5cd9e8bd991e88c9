"""The tables of the conversation history and the steps from one version to the next.

`PRAGMA user_version` holds the number of steps that have run. A step is never changed once
released: a change to the tables is a new step at the end.
"""

import sqlite3
from collections.abc import Sequence

APPLICATION_ID = 0x74756943
"""Marks the file as this app's ("tuiC")."""


class NewerHistoryError(Exception):
    """The file was written by a later version of the app."""


_STEP_1 = (
    """CREATE TABLE conversations (
        id TEXT PRIMARY KEY,
        title TEXT NOT NULL,
        model_path TEXT,
        system_prompt TEXT NOT NULL,
        sampling TEXT NOT NULL,
        leaf TEXT,
        draft TEXT NOT NULL,
        created REAL NOT NULL,
        updated REAL NOT NULL
    )""",
    "CREATE INDEX conversations_updated ON conversations (updated DESC)",
    """CREATE TABLE messages (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        conversation TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
        position INTEGER NOT NULL,
        parent TEXT,
        role TEXT NOT NULL,
        text TEXT NOT NULL,
        reasoning TEXT NOT NULL,
        token_ids BLOB NOT NULL,
        reasoning_tokens INTEGER NOT NULL,
        status TEXT NOT NULL,
        error TEXT,
        model TEXT,
        created REAL NOT NULL,
        stats TEXT,
        window INTEGER NOT NULL
    )""",
    "CREATE INDEX messages_conversation ON messages (conversation, position)",
    "CREATE INDEX messages_streaming ON messages (window) WHERE status = 'streaming'",
    """CREATE TABLE open_tabs (
        window INTEGER NOT NULL,
        position INTEGER NOT NULL,
        conversation TEXT NOT NULL,
        active INTEGER NOT NULL,
        PRIMARY KEY (window, position)
    )""",
)
_STEP_2 = (
    """CREATE TABLE drafts (
        conversation TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
        window INTEGER NOT NULL,
        text TEXT NOT NULL,
        PRIMARY KEY (conversation, window)
    )""",
)
"""What was written in a window while another one had changed the draft of the same chat."""
_STEP_3 = (
    "ALTER TABLE conversations ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE conversations ADD COLUMN archived INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE conversations ADD COLUMN deleted REAL",
    "CREATE INDEX conversations_listed ON conversations (pinned DESC, updated DESC)",
    """CREATE TABLE tags (
        conversation TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
        tag TEXT NOT NULL,
        PRIMARY KEY (conversation, tag)
    )""",
    "ALTER TABLE open_tabs ADD COLUMN read_only INTEGER NOT NULL DEFAULT 0",
    """CREATE TABLE takeovers (
        conversation TEXT PRIMARY KEY REFERENCES conversations (id) ON DELETE CASCADE,
        window INTEGER NOT NULL
    )""",
)
"""Chats in order, deleted ones that can still be brought back, and which window writes a chat."""
_STEP_4 = ("ALTER TABLE messages ADD COLUMN above TEXT",)
"""What is read in place of all that stands above a message."""
_STEP_5 = ("ALTER TABLE messages ADD COLUMN calls TEXT",)
"""Tools that an answer asked for, and the call that a message is the result of."""
_STEP_6 = ("ALTER TABLE messages ADD COLUMN votes TEXT",)
"""What an answer is against answers of other chats, as its reader found."""
STEPS: Sequence[Sequence[str]] = (_STEP_1, _STEP_2, _STEP_3, _STEP_4, _STEP_5, _STEP_6)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the tables to the newest version; each step runs whole or not at all.

    Raises `NewerHistoryError` for a file of a later version. The connection must be in autocommit
    mode (`isolation_level=None`).
    """
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > len(STEPS):
        raise NewerHistoryError(f"it has version {version}, this program knows {len(STEPS)}")
    while version < len(STEPS):
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Another process may have migrated while this one waited for the lock.
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            for statement in STEPS[version] if version < len(STEPS) else ():
                connection.execute(statement)
            version = min(version + 1, len(STEPS))
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {version}")
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
