"""One connection: its headers come in time, or it is closed."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol


def connection_class(header_seconds: float) -> type[H11Protocol]:
    """Connections that are closed where the headers of a request take longer than this."""

    class Connection(H11Protocol):
        """Uvicorn limits the bytes of headers, and not their time."""

        _waiting: asyncio.TimerHandle | None = None

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
