"""One answer that a server writes, for the one consumer of its events."""

import threading
from collections import deque
from collections.abc import Callable, Iterator

from engine import Event, Finished, ToolCall


class RemoteGeneration:
    """Filled on the endpoints' thread, emptied on another."""

    def __init__(self, stop: Callable[["RemoteGeneration"], None]) -> None:
        """stop: asks for its end, from any thread."""
        self.sequence_id = None
        self.finished: Finished | None = None
        self.waits = ""
        """What it waits for before it is asked for again, in a few words."""
        self.calls: tuple[ToolCall, ...] = ()
        """The calls of tools that came beside its text, known once it has ended."""
        self._stop = stop
        self._events: deque[Event] = deque()
        self._there = threading.Condition()
        self._listener: Callable[[], None] | None = None

    def cancel(self) -> None:
        """Close the connection; the server sees that nobody reads any more."""
        if self.finished is None:
            self._stop(self)

    def poll(self) -> list[Event]:
        """Return the events since the last call, without waiting."""
        with self._there:
            events = list(self._events)
            self._events.clear()
        return events

    def set_listener(self, listener: Callable[[], None] | None) -> None:
        """Call `listener` whenever events appear where none waited."""
        with self._there:
            self._listener = listener
            waiting = bool(self._events)
        if waiting and listener is not None:
            listener()

    def events(self) -> Iterator[Event]:
        """Iterate until the `Finished` event, waiting for each."""
        while True:
            with self._there:
                while not self._events:
                    self._there.wait()
                event = self._events.popleft()
            yield event
            if isinstance(event, Finished):
                return

    def put(self, event: Event) -> None:
        """Add an event; what comes behind the last one is dropped."""
        with self._there:
            if self.finished is not None:
                return
            if isinstance(event, Finished):
                self.finished = event
            first = not self._events
            self._events.append(event)
            self._there.notify()
            listener = self._listener
        if first and listener is not None:
            listener()
