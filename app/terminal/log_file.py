"""What the program and its libraries log goes to a file: a screen is for answers and errors in one line.

The file is its owner's alone and does not grow without end: full ones are kept beside it as `NAME.1` to
`NAME.3`, the newest first.
"""

import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from app.settings.paths import private_directory

_MOST_BYTES = 2_000_000
_KEPT = 3


def open_log(path: Path) -> int:
    """Open the log for writing at its end, for its owner only, its folder too; return the descriptor.

    A file that other users could read is theirs to read no more. Raises `OSError`.
    """
    private_directory(path.parent)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    # A device, /dev/null say, is everybody's.
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        with suppress(OSError):
            os.fchmod(descriptor, 0o600)
    return descriptor


class _LogFile(RotatingFileHandler):
    """Opened, with its folder, for the first line; where that cannot be, lines are dropped."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", delay=True, maxBytes=_MOST_BYTES, backupCount=_KEPT)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def _open(self) -> TextIOWrapper:
        try:
            return os.fdopen(open_log(Path(self.baseFilename)), "a", encoding="utf-8")
        except OSError:
            return Path(os.devnull).open("w", encoding="utf-8")

    def doRollover(self) -> None:
        """Begin a new file; where another process has begun one already, go on in that."""
        with suppress(OSError):
            if self.stream is not None and not self._is_current(self.stream):
                self.stream.close()
                self.stream = self._open()
                return
        try:
            super().doRollover()
        except OSError:
            self.stream = None

    def _is_current(self, stream: TextIOWrapper) -> bool:
        ours, there = os.fstat(stream.fileno()), Path(self.baseFilename).stat()
        return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop a line that cannot be written: a full disk must not end what is logged about."""

    def close(self) -> None:
        """Close the file; what cannot be written any more is dropped."""
        with suppress(OSError):
            super().close()


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Inside, log records and Python's warnings are appended to `path`."""
    handler = _LogFile(path)
    root = logging.getLogger()
    root.addHandler(handler)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.removeHandler(handler)
        handler.close()
