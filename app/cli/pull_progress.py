"""How fetches go on, on stderr: one line that changes on a terminal, plain lines elsewhere."""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from threading import Event
from typing import TextIO

from app.fetch.fetch import Fetch, Progress, State
from app.settings.words import size_text
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


def describe(progress: Progress) -> str:
    """One moment in words: `45 MB of 93 MB, 38 MB/s, 2 s left`."""
    if progress.state is State.CHECKING:
        return "is being checked"
    parts = [size_text(progress.done)]
    if progress.total is not None:
        share = 100 * progress.done // progress.total if progress.total else 100
        parts = [f"{share} %, {size_text(progress.done)} of {size_text(progress.total)}"]
    if progress.waiting:
        return ", ".join([*parts, f"waiting: {progress.waiting}"])
    if progress.speed > 0:
        parts.append(f"{size_text(progress.speed)}/s")
    if progress.seconds_left is not None:
        parts.append(f"{_left(progress.seconds_left)} left")
    return ", ".join(parts)


def _left(seconds: float) -> str:
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
