"""The server inside the app: other programs use the models that its tabs have loaded, in the same batch."""

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from app.models.port import ModelPort
from app.serve.doors import noted
from app.serve.listening import address_of
from app.settings.file import SamplingSettings
from engine import EngineStats

if TYPE_CHECKING:
    from app.serve.program import Server
    from app.serve.requests.port import ServedModel
    from app.serve.requests.served import Served

log = logging.getLogger(__name__)


class Door:
    """Serves on a thread of its own, with an event loop of its own."""

    def __init__(
        self,
        listening: socket.socket,
        resident: Callable[[], Sequence[ModelPort]],
        stats: Callable[[], EngineStats | None],
        sampling: Callable[[], SamplingSettings],
        doors: Path,
    ) -> None:
        """`listening` is bound already and belongs to the door from now on; doors: where it is noted."""
        self._doors = doors
        self.address = address_of(listening)
        self._listening = listening
        self._resident, self._stats, self._sampling = resident, stats, sampling
        self._server: Server | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="door", daemon=True)

    def open(self) -> None:
        """Begin to serve; who asks before all is loaded waits."""
        self._listening.listen()
        self._thread.start()

    def close(self, timeout: float) -> None:
        """End answers and stop listening, within `timeout` seconds."""
        self._closed.set()
        if self._server is not None:
            self._server.end()
        if self._thread.is_alive():
            self._thread.join(timeout)
        self._listening.close()

    def _run(self) -> None:
        from app.serve.program import ServeOptions, Server, make_application
        from app.serve.requests.served import ServedModels

        options = ServeOptions()
        application = make_application(ServedModels(self._models), self._stats, options, lambda _row: None)
        self._server = Server(application, options)
        if self._closed.is_set():
            return
        try:
            with noted(self._doors, self.address):
                asyncio.run(self._server.serve(sockets=[self._listening]))
        except Exception:
            log.exception("serving other programs")

    def _models(self) -> "list[Served]":
        from app.serve.requests.naming import served_model

        sampling = self._sampling()
        return [served_model(cast("ServedModel", model), sampling) for model in self._resident()]
