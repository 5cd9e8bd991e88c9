"""A thread that works in rounds and runs the commands of other threads between them."""

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import torch

from engine.api.errors import EngineClosedError, EngineError
from engine.device.stream import on_device

log = logging.getLogger(__name__)

_CLOSED = "the engine is closed; create a new one"

T = TypeVar("T")
Command = Callable[[], object]


class CommandThread:
    """Subclasses say what a round is and what is left to do at the end; every queued command is run."""

    def __init__(self, name: str, device: torch.device) -> None:
        """device: what the thread works on."""
        self._place = on_device(device)
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._posting = threading.Lock()
        self._closing = threading.Event()
        self._closed = False
        """Set under `_posting` before the inbox is drained for the last time."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """End the thread; waits at most `timeout` seconds."""
        if not self._closing.is_set():
            self._closing.set()
            self._post(lambda: None)
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def check_open(self) -> None:
        """Raise `EngineClosedError` after `stop`."""
        if self._closing.is_set():
            raise EngineClosedError(_CLOSED)

    def check_elsewhere(self) -> None:
        """Raise `EngineError` on the thread itself: what waits for it there would wait for ever."""
        if self._thread is threading.current_thread():
            raise EngineError(
                "a generation's listener runs on the engine's thread and cannot wait for the engine; "
                "call from another thread"
            )

    def call(self, work: Callable[[], T]) -> T:
        """Run `work` on this thread between rounds and wait for its result.

        Raises `EngineClosedError` after `stop`, and `EngineError` on the thread itself.
        """
        self.check_open()
        self.check_elsewhere()
        future: Future[T] = Future()

        def command() -> None:
            try:
                self.check_open()
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        self._post_or_raise(command)
        return future.result()

    def _round(self) -> None:
        """Drain the inbox and work a little."""
        raise NotImplementedError

    def _finish(self) -> None:
        """Leave nothing behind; no command comes any more."""
        raise NotImplementedError

    def _post(self, command: Command) -> bool:
        """Queue a command; False when the thread takes no more."""
        with self._posting:
            if not self._closed:
                self._inbox.put(command)
            return not self._closed

    def _post_or_lose(self, command: Command) -> None:
        """Queue a command without a lock; lost when the thread takes no more."""
        if not self._closed:
            self._inbox.put(command)

    def _post_or_raise(self, command: Command) -> None:
        if not self._post(command):
            raise EngineClosedError(_CLOSED)

    def _drain_inbox(self, *, wait: bool) -> None:
        """Run waiting commands; with `wait`, wait for one if there is none."""
        if wait:
            self._next_command()()
        while True:
            try:
                command = self._inbox.get_nowait()
            except queue.Empty:
                return
            command()

    def _next_command(self) -> Command:
        """Wait for a command."""
        return self._inbox.get()

    def _run(self) -> None:
        with self._place:
            try:
                while not self._closing.is_set():
                    self._round()
            finally:
                self._closing.set()
                self._drain_rest()
                self._finish()

    def _drain_rest(self) -> None:
        with self._posting:
            self._closed = True
        while not self._inbox.empty():
            try:
                self._inbox.get_nowait()()
            except Exception:
                log.exception("a command failed while closing")
