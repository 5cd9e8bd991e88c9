"""Carries text from the engine's streams to the conversations at frame rate.

Nothing ticks while nothing streams: the engine's thread wakes the pump once when events appear
where none waited, and what comes after a rest is carried at once. While text flows the pump runs at up
to 15 Hz, the one place that says how often there is new text, and slower when carrying it out would take
more than a fifth of the user interface's time: without that, conversations of many tabs would take all of
it. Painting comes after a flush and is not seen here; the transcript leaves out what it has no time for.
"""

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable

from app.models.port import GenerationPort
from engine import Event, Finished

log = logging.getLogger(__name__)

Sink = Callable[[list[Event]], None]
Broken = Callable[[Exception], None]
"""Told what a sink has raised; it is given nothing more."""

FASTEST = 1 / 15
SLOWEST = 0.5
_SHARE = 0.2
_SMOOTHING = 0.3


class Pump:
    """Drains every attached generation on the event loop; `attach` and the wake-up are cheap."""

    def __init__(self, loop: asyncio.AbstractEventLoop, after_flush: Callable[[], None]) -> None:
        """`after_flush` runs once after every flush that carried something."""
        self._loop = loop
        self._after_flush = after_flush
        # Woken from the engine's thread a callback would lack the app's context variables.
        self._context = contextvars.copy_context()
        self._streams: dict[GenerationPort, tuple[Sink, Broken]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._woken = False
        self._cost = 0.0
        self._flushed = -SLOWEST
        self._closed = False

    @property
    def interval(self) -> float:
        """Seconds between flushes at the cost measured so far."""
        return min(SLOWEST, max(FASTEST, self._cost / _SHARE))

    @property
    def closed(self) -> bool:
        """Whether it has delivered its last."""
        return self._closed

    def attach(self, generation: GenerationPort, sink: Sink, broken: Broken) -> None:
        """Deliver a generation's events to `sink` until its `Finished` has been delivered, or it raises."""
        self._streams[generation] = (sink, broken)
        generation.set_listener(self.wake)
        self.wake()

    def wake(self) -> None:
        """Plan a flush. May be called from any thread; coalesces."""
        if self._woken or self._closed:
            return
        self._woken = True
        try:
            self._loop.call_soon_threadsafe(self._plan, context=self._context)
        except RuntimeError:
            # The loop has closed between the check and the call: nobody is left to show anything to.
            self._closed = True

    def flush(self) -> int:
        """Deliver what waits, now; return the number of events."""
        carried = 0
        for generation, (sink, broken) in list(self._streams.items()):
            events = generation.poll()
            if not events:
                continue
            carried += len(events)
            if isinstance(events[-1], Finished):
                self._detach(generation)
            try:
                sink(events)
            except Exception as error:
                log.exception("taking the events of generation %s failed", generation.sequence_id)
                self._detach(generation)
                _tell(broken, error)
        return carried

    def _detach(self, generation: GenerationPort) -> None:
        if self._streams.pop(generation, None) is not None:
            generation.set_listener(None)

    def close(self) -> None:
        """Deliver what waits and stop."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.flush()

    def _plan(self) -> None:
        if self._timer is None and not self._closed:
            now = self._loop.time()
            due = max(now, self._flushed + self.interval)
            self._timer = self._loop.call_at(due, self._tick, due, context=self._context)

    def _tick(self, due: float) -> None:
        # The flag falls before the streams are drained: events that appear later wake again.
        self._timer = None
        self._woken = False
        self._flushed = self._loop.time()
        late = max(0.0, self._flushed - due)
        started = time.perf_counter()
        if not self.flush():
            return
        try:
            self._after_flush()
        except Exception:
            log.exception("showing numbers beside new text failed")
        cost = time.perf_counter() - started + late
        self._cost += _SMOOTHING * (cost - self._cost)
        if self._streams:
            self._plan()


def _tell(broken: Broken, error: Exception) -> None:
    try:
        broken(error)
    except Exception:
        log.exception("ending what failed has failed too")
