"""Answers that end when the client goes, whole or as server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.serve.http.connection import WRITE

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"
"""Ends OpenAI's streams."""


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_ENDS_OF_LINES = {ord(char): f"\\u{ord(char):04x}" for char in "\x85\u2028\u2029"}
"""JSON leaves them as they are, and clients that split lines as Python does would cut an event there."""


def event(data: object, name: str | None = None) -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {_line(data)}\n\n".encode("utf-8", "replace")


def _line(data: object) -> str:
    text = _encode(data)
    return text if text.isascii() else text.translate(_ENDS_OF_LINES)


class TextEvents:
    """Events that differ in one text alone: the rest of them is encoded once."""

    _PLACE = "\0text\0"

    def __init__(self, sample: Callable[[str], bytes]) -> None:
        """sample: makes the whole event of a text."""
        self._before, self._after = sample(self._PLACE).split(_encode(self._PLACE).encode())

    def of(self, text: str) -> bytes:
        """The event of this text."""
        return b"%b%b%b" % (self._before, _line(text).encode("utf-8", "replace"), self._after)


async def unless_gone(
    receive: Receive, work: Coroutine[Any, Any, T], *given_up: Coroutine[Any, Any, None]
) -> T:
    """What `work` returns; it is cancelled, and `ClientGone` raised, when the client goes before.

    given_up: ends when the client is taken for gone.
    """
    working = asyncio.ensure_future(work)
    tasks: list[asyncio.Future[Any]] = [working, *map(asyncio.ensure_future, (_gone(receive), *given_up))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events until they end or the client goes, or takes nothing for too long."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], close: Callable[[], None], write_seconds: float) -> None:
        """`close` is called whatever happens."""
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        # `Response` has put the length of a body that is not there.
        del self.headers["content-length"]
        self._events, self._close, self._write_seconds = events, close, write_seconds
        self._sent = 0
        self._sending = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        write = scope.get("extensions", {}).get(WRITE)

        async def write_by_asgi(data: bytes) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": True})

        try:
            await unless_gone(receive, self._write(send, write or write_by_asgi), self._stuck())
        except (ClientGone, OSError):
            return
        finally:
            self._close()

    async def _write(self, send: Send, write: Callable[[bytes], Awaitable[None]]) -> None:
        head = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(head)
        async for data in self._events:
            self._sending = True
            await write(data)
            self._sending = False
            self._sent += 1
        await send({"type": "http.response.body", "body": b""})

    async def _stuck(self) -> None:
        """End when the client takes nothing; a timeout for each event would cost more than the event."""
        before = -1
        while not self._sending or self._sent != before:
            before = self._sent
            await asyncio.sleep(self._write_seconds)
