"""Events from the engine's thread to one consumer.

The engine never blocks on it: a slow or vanished consumer costs memory for its own events and nothing
else.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable

from engine.api.request import Event, Finished

log = logging.getLogger(__name__)

Listener = Callable[[], None]


class EventStream:
    """What the engine holds of a generation: where its events wait to be taken."""

    def __init__(self, sequence_id: int) -> None:
        self.finished: Finished | None = None
        self.cancelled = False
        """Whether no further token is to be delivered."""
        self._sequence_id = sequence_id
        self._events: deque[Event] = deque()
        self._arrived = threading.Condition(threading.Lock())
        self._listener: Listener | None = None

    def push(self, event: Event) -> None:
        """Hand an event to the consumer; called on the engine's thread only."""
        with self._arrived:
            # Under the same lock as `drain`: a drain between the test and the append would leave
            # the event without a wake-up.
            first = not self._events
            self._events.append(event)
            listener = self._listener if first else None
            if isinstance(event, Finished):
                self.finished = event
                # A listener holds its consumer, which holds this: what has ended should go at once.
                self._listener = None
            self._arrived.notify_all()
        if listener is not None:
            self._notify(listener)

    def drain(self) -> list[Event]:
        """Take all events, without waiting."""
        with self._arrived:
            events = list(self._events)
            self._events.clear()
        return events

    def take(self) -> Event | None:
        """Take the next event if there is one."""
        with self._arrived:
            return self._events.popleft() if self._events else None

    def wait(self) -> Event | None:
        """Wait for the next event and take it; None: the last one has been taken."""
        with self._arrived:
            self._arrived.wait_for(lambda: bool(self._events) or self.finished is not None)
            return self._events.popleft() if self._events else None

    def wait_for_end(self, timeout: float | None) -> Finished | None:
        """Wait for the last event and leave it where it is; None after `timeout` seconds without."""
        with self._arrived:
            self._arrived.wait_for(lambda: self.finished is not None, timeout)
            return self.finished

    @property
    def over(self) -> bool:
        """Whether the last event has been taken."""
        return self.finished is not None and not self._events

    def set_listener(self, listener: Listener | None) -> None:
        """Call `listener` on the engine's thread when events appear where there were none."""
        if listener is None:
            self._listener = None
            return
        with self._arrived:
            # After the end nobody calls it, and nobody would let go of it.
            self._listener = listener if self.finished is None else None
            waiting = bool(self._events)
        if waiting:
            listener()

    def _notify(self, listener: Listener) -> None:
        try:
            listener()
        except BaseException:
            # A consumer whose event loop has gone, or that is being cancelled or interrupted, must not
            # take the engine's thread with it.
            log.warning("the listener of generation %s failed", self._sequence_id, exc_info=True)
            if self._listener is listener:
                self._listener = None
