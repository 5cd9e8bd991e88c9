"""How fetches go on, on stderr: one line that changes on a terminal, plain lines elsewhere."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import TextIO

from app.fetch.fetch import Progress, State
from app.settings.words import size_text
from app.terminal.controls import clean

_STEP = 10
"""Percent between two plain lines."""


class ProgressLine:
    """Collects what fetches tell from their threads, and shows it from the thread that calls `follow`."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._told: SimpleQueue[tuple[str, Progress]] = SimpleQueue()
        self._latest: dict[str, Progress] = {}
        self._shown: dict[str, str] = {}
        self._terminal = stream is not None and stream.isatty()

    def listener(self, title: str) -> Callable[[Progress], None]:
        """What a fetch of this title is to call."""
        return lambda progress: self._told.put((title, progress))

    def follow(self, count: int) -> None:
        """Show progress until `count` fetches have ended."""
        ended = 0
        while ended < count:
            title, progress = self._told.get()
            ended += progress.ended
            self._latest[title] = progress
            if self._terminal:
                self._show_line()
            else:
                self._show_step(title, progress)
        self.clear()

    def clear(self) -> None:
        """Take the line away."""
        if self._terminal:
            self._write("\r\x1b[K")

    def _show_line(self) -> None:
        texts = [f"{title} {describe(p)}" for title, p in self._latest.items() if not p.ended]
        width = shutil.get_terminal_size().columns - 1
        self._write("\r\x1b[K" + clean("  ·  ".join(texts))[:width])

    def _show_step(self, title: str, progress: Progress) -> None:
        """A plain line for every tenth, and for every pause of the server."""
        share = int(100 * progress.done / progress.total) // _STEP if progress.total else 0
        step = progress.waiting or f"{progress.state} {share}"
        if progress.ended or self._shown.get(title) == step:
            return
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
