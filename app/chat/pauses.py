"""What an answer cost, the reader's pauses left out of its speed."""

import time
from collections.abc import Callable
from dataclasses import replace

from app.chat.conversation import AnswerStats
from engine import Finished


class Pauses:
    """The pauses of one answer between its first token and its last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._seconds = 0.0

    def note(self, paused: bool) -> None:
        """Take it that the answer is paused now, or goes on."""
        now = self._clock()
        if self._since is not None:
            self._seconds += now - self._since
        self._since = now if paused else None

    def stats(self, finished: Finished) -> AnswerStats:
        """Return an answer's cost. A pause in which it was stopped came after its last token."""
        speed = finished.tok_s
        seconds = (finished.completion_tokens - 1) / speed if speed else 0.0
        if 0 < self._seconds < seconds:
            speed *= seconds / (seconds - self._seconds)
        return replace(AnswerStats.of(finished), tok_s=speed)
