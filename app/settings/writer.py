"""Settings are written beside the user interface: a slow disk holds up no frame."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from app.settings.file import SettingsError, save_setting


class SettingsWriter:
    """Writes into the settings file at `path`, one setting after the other in the order they came.

    `on_error` is called on the writing thread with why one was not saved.
    """

    def __init__(self, path: Path, on_error: Callable[[str], None]) -> None:
        self._path = path
        self._on_error = on_error
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="settings")
        self._last: Future[None] | None = None

    def save(self, section: str, key: str, value: Any) -> None:
        """Write one setting soon."""
        self._last = self._thread.submit(self._write, section, key, value)

    def close(self, timeout: float) -> None:
        """Wait until everything is written, but no longer than this."""
        self._thread.shutdown(wait=False)
        if self._last is not None:
            wait([self._last], timeout)

    def _write(self, section: str, key: str, value: Any) -> None:
        try:
            save_setting(self._path, section, key, value)
        except SettingsError as error:
            self._on_error(str(error))
