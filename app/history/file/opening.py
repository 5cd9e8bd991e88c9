"""Opening the history file safely: checking it, moving a damaged one aside, and what stands in for it.

Where the file cannot be used, another one beside it takes what is written, and its contents join the
history as soon as that can be used again, at a later start too.
"""

import contextlib
import logging
import sqlite3
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO
from urllib.parse import quote

from app.history.file.copying import copy_history
from app.history.file.schema import NewerHistoryError, migrate
from app.history.file.search_index import create_search_index
from app.history.file.windows import NoLocksError, claim_window
from app.settings.paths import private_directory

BUSY_SECONDS = 5.0
_OPEN_SECONDS = 1.0
_CHECKED_BYTES = 16 << 20
"""Files up to this size are checked whole at opening; damage in larger ones is met when it is read."""
_CACHE_KIB = 16 << 10
"""Pages of the file that are kept in memory: what a search reads while its words are being written."""
_MOST_WAITING = 64
_CORRUPT_CODES = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_WAITING = ".waiting-"
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Database:
    """An open history. `problem` says why it is not the file that was asked for, but stands in for it."""

    connection: sqlite3.Connection
    window: int = 0
    searchable: bool = False
    lock: IO[bytes] | None = None
    path: Path | None = None
    """None in memory."""
    identity: tuple[int, int] | None = None
    """Device and inode of the file, as another app may have put a new one in its place."""
    problem: str | None = None
    notices: list[str] = field(default_factory=list)
    """What the person should know about the opening."""

    def close(self) -> None:
        """Close the connection and free the window's number."""
        with contextlib.suppress(sqlite3.Error):
            self.connection.close()
        if self.lock is not None:
            self.lock.close()
            self.lock = None


class HistoryUnusableError(Exception):
    """The history file cannot be used now; says which and why."""


def open_database(path: Path | None, damaged: str | None = None, *, visiting: bool = False) -> Database:
    """Open the history at `path`, or on any trouble what stands in for it. None means in memory.

    `visiting`: for a command, which is no window; where the file cannot be used nothing is to be kept.

    A damaged file is moved aside, never deleted; a new one begins with what can be read of it. `damaged`
    says that the file is known to be so, and how. The connection belongs to the calling thread.
    """
    if path is None:
        return _in_memory(None)
    try:
        return open_file(path, damaged, visiting=visiting)
    except HistoryUnusableError as error:
        _log.warning("%s", error)
        return _in_memory(str(error)) if visiting else _stand_in(path, str(error))


def open_file(path: Path, damaged: str | None = None, *, visiting: bool = False) -> Database:
    """Open the history at `path` and take in what waits for it; raises `HistoryUnusableError`."""
    lock: IO[bytes] | None = None
    notices: list[str] = []
    try:
        private_directory(path.parent)
        window, lock = _claim(path, notices, last=visiting)
        aside = _move_aside(path) if damaged is not None else None
        locks = lock is not None or sys.platform == "win32"
        try:
            connection, searchable = _connect(path, locks=locks)
        except sqlite3.DatabaseError as error:
            if not is_corrupt(error):
                raise
            aside = _move_aside(path)
            connection, searchable = _connect(path, locks=locks)
        database = Database(connection, window, searchable, lock, path)
    except NewerHistoryError as error:
        problem = f"{path.name} is from a later version of tui-chat ({error})"
    except (OSError, sqlite3.Error) as error:
        problem = f"{path.name} cannot be opened ({error})"
    else:
        database.identity, database.notices = file_identity(path), notices
        if aside is not None:
            _salvage(aside, database)
        _join_waiting(path, database)
        return database
    if lock is not None:
        lock.close()
    raise HistoryUnusableError(problem)


def is_corrupt(error: BaseException) -> bool:
    """Tell whether an error says that the file itself is damaged."""
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(error, sqlite3.Error) and code is not None and code & 0xFF in _CORRUPT_CODES


def _is_busy(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def file_identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a file; None when there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def remove_waiting(path: Path) -> None:
    """Remove a file that stood in, when its contents are in the history."""
    for name in (path.name, f"{path.name}-journal"):
        with contextlib.suppress(OSError):
            path.with_name(name).unlink()


def _claim(path: Path, notices: list[str], *, last: bool) -> tuple[int, IO[bytes] | None]:
    try:
        return claim_window(path, last=last)
    except NoLocksError as error:
        _log.warning("%s: no file locks (%s)", path, error)
        notices.append(
            f"The file system of {path.parent} has no file locks: chats are saved, but a second window of "
            "tui-chat would take this one's tabs."
        )
        return 0, None


def _move_aside(path: Path) -> Path:
    """Rename a damaged file (with its journal) to the first free `NAME.corrupt-N`; return that."""
    number = 1
    while (target := path.with_name(f"{path.name}.corrupt-{number}")).exists():
        number += 1
    path.rename(target)
    for suffix in ("-wal", "-shm", "-journal"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(target.with_name(target.name + suffix))
    return target


def _salvage(aside: Path, database: Database) -> None:
    """Take what can be read of a damaged file over, and say what became of it."""
    saved = "nothing in it could be read"
    try:
        with contextlib.closing(_plain_connection(aside)) as source:
            copied = copy_history(source, database.connection, searchable=database.searchable, tabs=True)
        if copied:
            saved = f"what could be read of it is here: {copied}"
    except Exception as error:
        # Whatever stands in a damaged file, the app has to start.
        _log.warning("%s: not taken over", aside, exc_info=error)
        saved = f"it could not be taken over ({error})"
    notice = f"The history was damaged. The file is kept as {aside.name}; {saved}."
    _log.warning("%s (%s)", notice, aside)
    database.notices.append(notice)


def _join_waiting(path: Path, database: Database) -> None:
    """Take in the files that stood in for this one; one that another app is using stays."""
    for waiting in sorted(path.parent.glob(f"{path.name}{_WAITING}*")):
        if not waiting.name.removeprefix(path.name + _WAITING).isdigit():
            continue
        try:
            with contextlib.closing(_exclusive(waiting)) as source:
                copied = copy_history(source, database.connection, searchable=database.searchable)
                remove_waiting(waiting)
        except Exception as error:
            _log.warning("%s: stays aside (%s)", waiting, error)
            if is_corrupt(error):
                _salvage(_move_aside(waiting), database)
            elif not _is_busy(error):
                database.notices.append(
                    f"What is kept in {waiting.name} could not be taken in yet ({error})."
                )
            continue
        _log.warning("%s: has joined the history: %s", waiting, copied)
        if copied:
            database.notices.append(
                f"What was kept in {waiting.name} while the history could not be used is in it now: {copied}."
            )


def _plain_connection(path: Path | str, timeout: float = 0.0, options: str = "") -> sqlite3.Connection:
    where = f"file:{quote(str(path))}?{options}" if options else path
    connection = sqlite3.connect(where, timeout=timeout, isolation_level=None, uri=bool(options))
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    return connection


def _connect(path: Path, *, locks: bool) -> tuple[sqlite3.Connection, bool]:
    """Open the file; return the connection and whether it has full-text search."""
    try:
        connection = _checked(_plain_connection(path, _OPEN_SECONDS), path)
    except sqlite3.OperationalError as error:
        if locks or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_IOERR:
            raise
        _log.warning("%s: opened without locks (%s)", path, error)
        connection = _checked(_plain_connection(path, options="nolock=1"), path, alone=True)
    try:
        return connection, create_search_index(connection)
    except BaseException:
        connection.close()
        raise


def _checked(connection: sqlite3.Connection, path: Path, *, alone: bool = False) -> sqlite3.Connection:
    """Bring a fresh connection into use, or close it."""
    try:
        path.chmod(0o600)
        if alone:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        # With WAL, NORMAL loses nothing when the process dies; only a power cut may cost the last commits.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
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


def _exclusive(path: Path) -> sqlite3.Connection:
    """Open a file that stands in for the history, for one app alone, for as long as it is open."""
    connection = _plain_connection(path)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("COMMIT")
        migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _stand_in(path: Path, problem: str) -> Database:
    """Open the first file beside the history that no other app uses; where there can be none, memory."""
    for number in range(1, _MOST_WAITING + 1):
        waiting = path.with_name(f"{path.name}{_WAITING}{number}")
        try:
            connection = _exclusive(waiting)
            waiting.chmod(0o600)
            searchable = create_search_index(connection)
        except (NewerHistoryError, sqlite3.Error, OSError) as error:
            if _is_busy(error):
                continue
            _log.warning("%s: cannot stand in (%s)", waiting, error)
            break
        return Database(connection, 0, searchable, path=waiting, problem=problem)
    return _in_memory(problem)


def _in_memory(problem: str | None) -> Database:
    connection = _plain_connection(":memory:")
    connection.execute("PRAGMA foreign_keys = ON")
    migrate(connection)
    return Database(connection, 0, create_search_index(connection), problem=problem)


def take_over(stand_in: Database, database: Database) -> Database:
    """Bring what stood in for a file into it; end the one and return the other."""
    try:
        copy_history(stand_in.connection, database.connection, searchable=database.searchable)
    except BaseException:
        database.close()
        raise
    if stand_in.path is not None:
        remove_waiting(stand_in.path)
    stand_in.close()
    return database
