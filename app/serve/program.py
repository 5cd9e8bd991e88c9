"""Runs the server: one application, its limits, and an end that leaves nothing behind."""

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from app.serve.http.connection import connection_class
from app.serve.http.limits import Access, HttpLimits, is_loopback
from app.serve.listening import USUAL_PORT
from app.serve.log_row import Row, write_row
from app.serve.metrics import Metrics, Stats
from app.serve.requests.desk import MOST_REQUESTS, Desk
from app.serve.requests.served import ServedModels
from app.serve.routes import Routes

_HEADER_BYTES = 64 << 10
_END_SECONDS = 3
_MORE_CONNECTIONS = 256
"""Beyond those of requests that run or wait: for what is answered at once, and for refusals."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How a server listens and what it takes."""

    host: str = "127.0.0.1"
    port: int = USUAL_PORT
    token: str | None = field(default=None, repr=False)
    most_requests: int = MOST_REQUESTS
    limits: HttpLimits = field(default_factory=HttpLimits)


def make_application(
    models: ServedModels,
    stats: Stats,
    options: ServeOptions,
    log: Callable[[Row], None] = write_row,
) -> ASGIApp:
    """The application that serves these models."""
    desk = Desk(models, Metrics(stats), log, options.most_requests)
    access = Access(options.token, is_loopback(options.host))
    return Routes(desk, options.limits, access).application()


class Server(uvicorn.Server):
    """A server that is told to end; signals are handled by whoever runs it."""

    def __init__(self, application: ASGIApp, options: ServeOptions) -> None:
        super().__init__(
            uvicorn.Config(
                application,
                http=connection_class(options.limits.header_seconds),
                ws="none",
                lifespan="off",
                loop="asyncio",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                h11_max_incomplete_event_size=_HEADER_BYTES,
                limit_concurrency=options.most_requests + _MORE_CONNECTIONS,
                timeout_graceful_shutdown=_END_SECONDS,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them as they are."""
        yield

    def end(self) -> None:
        """Stop listening, give answers a moment, and end."""
        self.should_exit = True


def run_server(application: ASGIApp, options: ServeOptions, listening: socket.socket) -> bool:
    """Serve until a signal ends it; return whether that was Ctrl+C."""
    server = Server(application, options)
    interrupted = False

    async def serve() -> None:
        nonlocal interrupted
        loop = asyncio.get_running_loop()

        def end(by_key: bool) -> None:
            nonlocal interrupted
            interrupted |= by_key
            server.end()

        with _handling(loop, {signal.SIGINT: True, signal.SIGTERM: False}, end):
            await server.serve(sockets=[listening])

    asyncio.run(serve())
    return interrupted


@contextmanager
def _handling(
    loop: asyncio.AbstractEventLoop, signals: dict[signal.Signals, bool], end: Callable[[bool], Any]
) -> Iterator[None]:
    for number, by_key in signals.items():
        loop.add_signal_handler(number, end, by_key)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
