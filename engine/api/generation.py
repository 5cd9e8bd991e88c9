"""The handle of one request, for the one consumer of its events.

The consumer may poll, iterate, iterate asynchronously or wait for the result. The engine holds the
stream of events and never the handle: when nobody holds that any more, nobody can read what would
come, and the request is cancelled.
"""

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Iterator

from engine.api.event_stream import EventStream, Listener
from engine.api.request import Action, Event, Finished, Priority, Request, TextDelta

Control = Callable[[int, Action | Priority], None]
"""(sequence, what is to become of it): carried out at the next tick.

Takes no lock: the garbage collector calls it on any thread, the engine's too, whatever that holds.
"""


class Generation:
    """One running or finished request; dropping the last reference cancels it.

    An iteration and a call that waits hold it, and so does a listener that refers to it.
    """

    def __init__(self, sequence_id: int, request: Request, control: Control) -> None:
        self.sequence_id = sequence_id
        self.request = request
        self.stream = EventStream(sequence_id)
        """What the engine hands events to."""
        self._control = control
        # At the interpreter's end there is nothing to save any more.
        weakref.finalize(self, _cancel, self.stream, sequence_id, control).atexit = False

    @property
    def finished(self) -> Finished | None:
        """The last event once it has come, taken or not."""
        return self.stream.finished

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self.stream.cancelled

    def cancel(self) -> None:
        """Ask the engine to stop; what was generated stays, the last event says `CANCELLED`.

        No token is delivered that the engine has not begun to deliver by now.
        """
        _cancel(self.stream, self.sequence_id, self._control)

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
        return self.stream.drain()

    def set_listener(self, listener: Listener | None) -> None:
        """Have the engine's thread call `listener` when events appear where there were none.

        It must return at once and must not wait for the engine (`Model.logits`, `Model.unload`,
        `Engine.load`). It is called right away when events are already waiting.
        """
        self.stream.set_listener(listener)

    def events(self) -> Iterator[Event]:
        """Iterate until the `Finished` event, waiting for each; at once over when it was consumed.

        Who stops early loses nothing: the next consumer goes on with the next event.
        """
        while (event := self.stream.wait()) is not None:
            yield event
            if isinstance(event, Finished):
                return

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Iterate asynchronously until the `Finished` event, like `events`."""
        loop = asyncio.get_running_loop()
        wake = asyncio.Event()
        self.set_listener(lambda: _wake(loop, wake))
        try:
            while True:
                while (event := self.stream.take()) is not None:
                    yield event
                    if isinstance(event, Finished):
                        return
                if self.stream.over:
                    return
                await wake.wait()
                wake.clear()
        finally:
            self.set_listener(None)

    def result(self, timeout: float | None = None) -> tuple[str, Finished]:
        """Wait for the end; returns the text not consumed before and the last event.

        Raises TimeoutError after `timeout` seconds.
        """
        finished = self.stream.wait_for_end(timeout)
        if finished is None:
            raise TimeoutError(f"the generation did not finish within {timeout} s")
        text = "".join(event.text for event in self.poll() if isinstance(event, TextDelta))
        return text, finished


def _cancel(stream: EventStream, sequence_id: int, control: Control) -> None:
    stream.cancelled = True
    if stream.finished is None:
        control(sequence_id, Action.CANCEL)


def _wake(loop: asyncio.AbstractEventLoop, wake: asyncio.Event) -> None:
    loop.call_soon_threadsafe(wake.set)
