"""The stream handle of one request: events from the engine's thread to one consumer.

A generation has one consumer, which may poll, iterate, iterate asynchronously or wait for the
result. The engine never blocks on it: a slow or vanished consumer costs memory for its own events
and nothing else.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator

from engine.api.request import Action, Event, Finished, Priority, Request, TextDelta

log = logging.getLogger(__name__)

Listener = Callable[[], None]
Control = Callable[[int, Action | Priority], None]
"""(sequence, what is to become of it): carried out at the next tick."""


class Generation:
    """One running or finished request."""

    def __init__(self, sequence_id: int, request: Request, control: Control) -> None:
        self.sequence_id = sequence_id
        self.request = request
        self.finished: Finished | None = None
        self.cancelled = False
        """Whether `cancel` was called."""
        self._control = control
        self._events: deque[Event] = deque()
        self._arrived = threading.Condition(threading.Lock())
        self._listener: Listener | None = None

    def cancel(self) -> None:
        """Ask the engine to stop; what was generated stays, the last event says `CANCELLED`.

        No token is delivered that the engine has not begun to deliver by now.
        """
        self.cancelled = True
        self._ask(Action.CANCEL)

    def pause(self) -> None:
        """Ask the engine to compute no further for now; the KV is kept while nobody needs its memory."""
        self._ask(Action.PAUSE)

    def resume(self) -> None:
        """Go on after `pause`."""
        self._ask(Action.RESUME)

    def set_priority(self, priority: Priority) -> None:
        """Change how the sequence shares the device with others from the next tick on."""
        self._ask(priority)

    def _ask(self, what: Action | Priority) -> None:
        if self.finished is None:
            self._control(self.sequence_id, what)

    def poll(self) -> list[Event]:
        """Events since the last call, without waiting."""
        with self._arrived:
            events = list(self._events)
            self._events.clear()
        return events

    def set_listener(self, listener: Listener | None) -> None:
        """Have the engine's thread call `listener` when events appear where there were none.

        It must return at once and must not wait for the engine (`Model.logits`, `Model.unload`,
        `Engine.load`). It is called right away when events are already waiting.
        """
        self._listener = listener
        if listener is not None and self._events:
            listener()

    def events(self) -> Iterator[Event]:
        """Iterate until the `Finished` event, waiting for each; at once over when it was consumed.

        Who stops early loses nothing: the next consumer goes on with the next event.
        """
        while True:
            with self._arrived:
                self._arrived.wait_for(lambda: bool(self._events) or self.finished is not None)
                event = self._events.popleft() if self._events else None
            if event is not None:
                yield event
            if event is None or isinstance(event, Finished):
                return

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Iterate asynchronously until the `Finished` event, like `events`."""
        loop = asyncio.get_running_loop()
        wake = asyncio.Event()
        self.set_listener(lambda: _wake(loop, wake))
        try:
            while True:
                while (event := self._pop()) is not None:
                    yield event
                    if isinstance(event, Finished):
                        return
                if self.finished is not None and not self._events:
                    return
                await wake.wait()
                wake.clear()
        finally:
            self.set_listener(None)

    def result(self, timeout: float | None = None) -> tuple[str, Finished]:
        """Wait for the end; returns the text not consumed before and the last event.

        Raises TimeoutError after `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._arrived:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._arrived.wait_for(lambda: self.finished is not None, left):
                raise TimeoutError(f"the generation did not finish within {timeout} s")
        text = "".join(event.text for event in self.poll() if isinstance(event, TextDelta))
        assert self.finished is not None
        return text, self.finished

    def _pop(self) -> Event | None:
        with self._arrived:
            return self._events.popleft() if self._events else None

    def push(self, event: Event) -> None:
        """Hand an event to the consumer; called on the engine's thread only."""
        with self._arrived:
            # Under the same lock as `poll`: a drain between the test and the append would leave
            # the event without a wake-up.
            first = not self._events
            self._events.append(event)
            if isinstance(event, Finished):
                self.finished = event
            self._arrived.notify_all()
        if first:
            self._notify_listener()
        if isinstance(event, Finished):
            # A listener holds its consumer, which holds this: what has ended should go at once.
            self._listener = None

    def _notify_listener(self) -> None:
        listener = self._listener
        if listener is None:
            return
        try:
            listener()
        except BaseException:
            # A consumer whose event loop has gone, or that is being cancelled or interrupted, must not
            # take the engine's thread with it.
            log.warning("the listener of generation %s failed", self.sequence_id, exc_info=True)
            if self._listener is listener:
                self._listener = None


def _wake(loop: asyncio.AbstractEventLoop, wake: asyncio.Event) -> None:
    loop.call_soon_threadsafe(wake.set)
