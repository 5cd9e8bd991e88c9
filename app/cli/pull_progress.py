"""How fetches go on, on stderr: one line that changes on a terminal, plain lines elsewhere."""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from threading import Event
from typing import TextIO

from app.fetch.fetch import Fetch, Progress
from app.fetch.words import describe
from app.terminal.controls import clean

_STEP = 10
"""Percent between two plain lines."""
_PATIENCE = 0.5


class ProgressLine:
    """Shows how some fetches go on until all have ended."""

    def __init__(self, stream: TextIO | None, fetches: Sequence[Fetch]) -> None:
        self._stream = stream
        self._fetches = fetches
        self._shown: dict[str, str] = {}
        self._terminal = stream is not None and stream.isatty()

    def follow(self) -> None:
        """Show progress until the end; the stream's line is empty then, whatever ends it."""
        news = Event()
        forget = [fetch.listen(lambda _: news.set()) for fetch in self._fetches]
        try:
            while not all(fetch.progress.ended for fetch in self._fetches):
                # Without news a speed sinks all the same.
                news.wait(_PATIENCE)
                news.clear()
                self._show()
        finally:
            for ended in forget:
                ended()
            if self._terminal:
                self._write("\r\x1b[K")

    def _show(self) -> None:
        going = [(fetch.plan.title, fetch.progress) for fetch in self._fetches]
        going = [(title, progress) for title, progress in going if not progress.ended]
        if not self._terminal:
            for title, progress in going:
                self._show_step(title, progress)
            return
        texts = [f"{title} {describe(progress)}" for title, progress in going]
        width = shutil.get_terminal_size().columns - 1
        self._write("\r\x1b[K" + clean("  ·  ".join(texts))[:width])

    def _show_step(self, title: str, progress: Progress) -> None:
        """A plain line for every tenth, and for every pause of the server."""
        share = int(100 * progress.done / progress.total) // _STEP if progress.total else 0
        step = progress.waiting or f"{progress.state} {share}"
        if self._shown.get(title) != step:
            self._shown[title] = step
            self._write(f"{title}: {describe(progress)}\n")

    def _write(self, text: str) -> None:
        if self._stream is not None:
            with suppress(OSError, ValueError):
                self._stream.write(text)
                self._stream.flush()
