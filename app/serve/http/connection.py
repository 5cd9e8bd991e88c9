"""One connection: its headers come in time, or it is closed; pieces of an answer go straight onto it."""

import asyncio
from typing import Any

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

WRITE = "tui_chat.write"
"""The extension of ASGI that writes a piece of a body whose response has begun: `await write(data)`."""


def connection_class(header_seconds: float) -> type[H11Protocol]:
    """Connections that are closed where the headers of a request take longer than this."""

    class Connection(H11Protocol):
        """Uvicorn limits the bytes of headers, and not their time."""

        _waiting: asyncio.TimerHandle | None = None

        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            self._inner, self.app = self.app, self._offer_write

        async def _offer_write(self, scope: Scope, receive: Receive, send: Send) -> None:
            if scope["http_version"] == "1.1":
                scope.setdefault("extensions", {})[WRITE] = self._write
            await self._inner(scope, receive, send)

        async def _write(self, data: bytes) -> None:
            # h11 keeps no count of a chunked body, and takes as long for a piece as all else that is done.
            if self.flow.write_paused:
                await self.flow.drain()
            if data and not self.transport.is_closing():
                self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            idle = self.cycle is None or self.cycle.response_complete
            if idle and self._waiting is None:
                self._wait()
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop_waiting()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _wait(self) -> None:
            self._waiting = self.loop.call_later(header_seconds, self._close)

        def _stop_waiting(self) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None

        def _close(self) -> None:
            self._waiting = None
            if not self.transport.is_closing():
                self.transport.close()

    return Connection
