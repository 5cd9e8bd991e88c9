"""Opening the history file safely: moving a damaged one aside, claiming a window, falling back.

A window is what one running app shows. Its number is held by a file lock, so that two apps at once
keep tabs of their own, and so that a number is free again however its app ended.
"""

import contextlib
import os
import sqlite3
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from app.history.schema import NewerHistoryError, create_search_index, migrate
from app.settings.paths import private_directory

BUSY_SECONDS = 5.0
_OPEN_SECONDS = 1.0
_CHECKED_BYTES = 16 << 20
"""Files up to this size are checked whole at opening; damage in larger ones is met when it is read."""
_MOST_WINDOWS = 64
_CORRUPT_CODES = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


@dataclass(slots=True)
class Database:
    """An open history: `warning` says when it is not the file that was asked for."""

    connection: sqlite3.Connection
    window: int
    searchable: bool
    warning: str | None = None
    lock: IO[bytes] | None = None
    identity: tuple[int, int] | None = None
    """Device and inode of the file, as another app may have put a new one in its place."""
    path: Path | None = None
    """None in memory."""

    def close(self) -> None:
        """Close the connection and free the window's number."""
        with contextlib.suppress(sqlite3.Error):
            self.connection.close()
        if self.lock is not None:
            self.lock.close()
            self.lock = None


def open_database(path: Path | None) -> Database:
    """Open the history at `path`; on any trouble open one in memory, with a warning that says why.

    A damaged file is moved aside, never deleted, and a new one begun. None means in memory. The
    connection belongs to the calling thread.
    """
    if path is None:
        return _in_memory(None)
    warning = None
    lock: IO[bytes] | None = None
    try:
        private_directory(path.parent)
        window, lock = _claim_window(path)
        try:
            connection = _connect(path)
        except sqlite3.DatabaseError as error:
            if not is_corrupt(error):
                raise
            warning = f"{path}: the history is damaged; it was moved to {move_aside(path)}, a new one begins"
            connection = _connect(path)
        searchable = create_search_index(connection)
        return Database(connection, window, searchable, warning, lock, file_identity(path), path)
    except NewerHistoryError as error:
        problem = f"{path}: the history is from a later version of tui-chat ({error})"
    except (OSError, sqlite3.Error) as error:
        problem = f"{path}: the history cannot be opened ({error})"
    if lock is not None:
        lock.close()
    return _in_memory(f"{problem}; conversations of this session are not saved")


def is_corrupt(error: sqlite3.Error) -> bool:
    """Tell whether an error says that the file itself is damaged."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _CORRUPT_CODES


def file_identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a file; None when there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def move_aside(path: Path) -> Path:
    """Rename a damaged file (with its journal) to the first free `NAME.corrupt-N`; return that."""
    number = 1
    while (target := path.with_name(f"{path.name}.corrupt-{number}")).exists():
        number += 1
    path.rename(target)
    for suffix in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(target.with_name(target.name + suffix))
    return target


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_OPEN_SECONDS, isolation_level=None)
    try:
        path.chmod(0o600)
        connection.execute("PRAGMA journal_mode = WAL")
        # With WAL, NORMAL loses nothing when the process dies; only a power cut may cost the last commits.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        migrate(connection)
        if path.stat().st_size <= _CHECKED_BYTES:
            problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if problem != "ok":
                raise _corrupt(problem)
        # A read-only or locked file is told apart here, not at the first message.
        connection.execute("DELETE FROM open_tabs WHERE window < 0")
        connection.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
    except BaseException:
        connection.close()
        raise
    return connection


def _corrupt(problem: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(problem)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def _in_memory(warning: str | None) -> Database:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("PRAGMA foreign_keys = ON")
    migrate(connection)
    return Database(connection, 0, create_search_index(connection), warning)


def is_running(path: Path, window: int) -> bool:
    """Tell whether an app shows this window of the history at `path` now; in doubt one does."""
    if sys.platform == "win32":
        import psutil

        return psutil.pid_exists(window)
    try:
        lock = _lock_window(path, window)
    except OSError:
        return True
    if lock is not None:
        lock.close()
    return lock is None


def _lock_window(path: Path, window: int) -> IO[bytes] | None:
    """Hold a window's number; None when a running app does. Raises OSError when there can be no file."""
    import fcntl

    lock = path.with_name(f"{path.name}.window-{window}").open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    return lock


def _claim_window(path: Path) -> tuple[int, IO[bytes] | None]:
    """Take the lowest window number that no running app holds."""
    if sys.platform == "win32":
        return os.getpid(), None
    for window in range(_MOST_WINDOWS):
        lock = _lock_window(path, window)
        if lock is not None:
            return window, lock
    raise OSError(f"{_MOST_WINDOWS} other windows are open")
