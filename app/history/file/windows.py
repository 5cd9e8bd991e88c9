"""Which window of the app this is: a number, held by a file lock.

A window is what one running app shows. By their locks two apps at once keep tabs of their own, and a
number is free again however its app ended.
"""

import errno
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO

_MOST_WINDOWS = 64
_HELD = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})
"""What a lock fails with when another process has it; anything else says that there are no locks."""


class NoLocksError(OSError):
    """The file system has no file locks."""


def last_written(path: Path) -> tuple[tuple[int, int], ...]:
    """Return size and time of a history's files, those that are there."""
    found = []
    for name in (path, path.with_name(f"{path.name}-wal")):
        with suppress(OSError):
            stat = name.stat()
            found.append((stat.st_size, stat.st_mtime_ns))
    return tuple(found)


def is_running(path: Path, window: int) -> bool:
    """Tell whether an app shows this window of the history at `path` now.

    In doubt one does, but where there are no locks nobody could ever tell.
    """
    if sys.platform == "win32":
        import psutil

        return psutil.pid_exists(window)
    try:
        lock = _lock_window(path, window)
    except NoLocksError:
        return False
    except OSError:
        return True
    if lock is not None:
        lock.close()
    return lock is None


def claim_window(path: Path, *, last: bool = False) -> tuple[int, IO[bytes] | None]:
    """Take the lowest window number that no running app holds, or the last one, whose tabs nobody misses.

    Raises `NoLocksError` where no number can be held, `OSError` where there can be no file.
    """
    if sys.platform == "win32":
        return os.getpid(), None
    for window in reversed(range(_MOST_WINDOWS)) if last else range(_MOST_WINDOWS):
        lock = _lock_window(path, window)
        if lock is not None:
            return window, lock
    raise OSError(f"{_MOST_WINDOWS} other windows are open")


def _lock_window(path: Path, window: int) -> IO[bytes] | None:
    """Hold a window's number; None when a running app does."""
    import fcntl

    lock = path.with_name(f"{path.name}.window-{window}").open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        if error.errno in _HELD:
            return None
        raise NoLocksError(error.errno, error.strerror) from error
    return lock
