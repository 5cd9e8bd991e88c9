"""What the program and its libraries log goes to a file: a screen is for answers and errors in one line."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path

from app.settings.paths import private_directory


class _LogFile(logging.FileHandler):
    """Opened, with its folder, for the first line; where that cannot be, lines are dropped."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", delay=True)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def _open(self) -> TextIOWrapper:
        try:
            private_directory(Path(self.baseFilename).parent)
            return super()._open()
        except OSError:
            return Path(os.devnull).open("w", encoding="utf-8")


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
