"""A thread that makes kernels ready behind a runner, and who frees what both use.

Compiling one shape takes up to seconds and cannot be interrupted. A runner that is closed meanwhile
must not wait for it, nor free what the thread's passes read: whoever is last frees, once.
"""

import logging
import threading
from collections.abc import Callable, Generator

log = logging.getLogger(__name__)


class CompileThread:
    """Works through steps until they end or `close` is called; then `free` runs once."""

    def __init__(self, free: Callable[[], None]) -> None:
        """free: gives back what steps and runner use; called by `close`, or by the thread at its end."""
        self._free: Callable[[], None] | None = free
        self._lock = threading.Lock()
        self._running = False
        self._closed = False
        self.freed = threading.Event()
        """Set when `free` has run and nothing here refers to the runner any more."""

    @property
    def running(self) -> bool:
        """Whether steps are left."""
        return self._running

    def start(self, steps: Generator[None, None, None]) -> None:
        """Begin; a step ends where the generator yields. At most once, before `close`."""
        self._running = True
        threading.Thread(target=self._run, args=([steps],), name="compiler", daemon=True).start()

    def close(self) -> None:
        """End after the step that runs; returns at once. Harmless when it was called before."""
        with self._lock:
            last = not self._running and not self._closed
            self._closed = True
        if last:
            self._end()

    def _run(self, holder: list[Generator[None, None, None]]) -> None:
        steps = holder.pop()
        try:
            while not self._closed and next(steps, self) is not self:
                pass
            steps.close()
        except Exception:
            log.exception("compiling kernels ahead of their use failed")
        del steps
        with self._lock:
            self._running = False
            last = self._closed
        if last:
            try:
                self._end()
            except Exception:
                log.exception("freeing a model's memory failed")

    def _end(self) -> None:
        free, self._free = self._free, None
        try:
            if free is not None:
                free()
        finally:
            del free
            self.freed.set()
