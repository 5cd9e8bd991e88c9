"""From the engine's thread to an event loop: one call for all streams of a tick, not one for each."""

import asyncio
from collections import deque
from contextlib import suppress


class Wakeups:
    """Sets events of one loop from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: deque[asyncio.Event] = deque()
        self._called = False

    def wake(self, event: asyncio.Event) -> None:
        """Have `event` set on the loop, soon."""
        self._waiting.append(event)
        if not self._called:
            self._called = True
            # After the loop's end there is nobody to wake.
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        # Before the events are taken: one that is put in after that brings a call of its own.
        self._called = False
        while self._waiting:
            self._waiting.popleft().set()
