"""Which window writes a chat that several have in a tab. Runs on the history's own thread.

A window that opens a chat which another one writes only reads it. To write it asks for a takeover; the
other one hears of that, ends its answer, saves, and reads from then on.
"""

from app.history.file.opening import Database
from app.history.file.windows import is_running


def is_written_elsewhere(database: Database, conversation_id: str) -> bool:
    """Tell whether another app that runs now writes a conversation."""
    sql = "SELECT DISTINCT window FROM open_tabs WHERE conversation = ? AND read_only = 0"
    return _any_other_runs(database, sql, conversation_id)


def _is_wanted_elsewhere(database: Database, conversation_id: str) -> bool:
    return _any_other_runs(database, "SELECT window FROM takeovers WHERE conversation = ?", conversation_id)


def _any_other_runs(database: Database, windows: str, conversation_id: str) -> bool:
    rows = database.connection.execute(windows, (conversation_id,)).fetchall()
    others = [window for (window,) in rows if isinstance(window, int) and window != database.window]
    return database.path is not None and any(is_running(database.path, window) for window in others)


def ask_takeover(database: Database, conversation_id: str) -> None:
    """Note that this window wants to write a conversation."""
    database.connection.execute(
        "INSERT OR REPLACE INTO takeovers (conversation, window) VALUES (?, ?)",
        (conversation_id, database.window),
    )


def takeovers_asked(database: Database) -> list[str]:
    """Return the conversations that this window writes and another one wants to."""
    rows = database.connection.execute(
        """SELECT t.conversation FROM takeovers t JOIN open_tabs o ON o.conversation = t.conversation
           WHERE o.window = ? AND o.read_only = 0 AND t.window != ?""",
        (database.window, database.window),
    )
    return [conversation for (conversation,) in rows.fetchall()]


def claim_writing(database: Database, conversation_id: str) -> bool:
    """Note that this window writes a conversation; False while another one does, or wants to."""
    connection = database.connection
    connection.execute("BEGIN IMMEDIATE")
    try:
        free = not (
            is_written_elsewhere(database, conversation_id) or _is_wanted_elsewhere(database, conversation_id)
        )
        if free:
            connection.execute(
                "UPDATE open_tabs SET read_only = 0 WHERE conversation = ? AND window = ?",
                (conversation_id, database.window),
            )
            connection.execute("DELETE FROM takeovers WHERE conversation = ?", (conversation_id,))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return free
