"""What a request may take: bytes and time of its body; and who may ask at all."""

import asyncio
import hmac
import ipaddress
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import Receive

from app.serve.http.errors import ApiError
from app.serve.http.fields import Fields, parse_object

OPEN_PATHS = ("/health",)
"""What is answered without a token."""
_CORS_OFF = "requests of web pages are not served"


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """How much, and how long, one client may take."""

    body_bytes: int = 16 << 20
    all_bodies_bytes: int = 256 << 20
    """Of all bodies together that are on their way; at least one of the longest."""
    body_seconds: float = 30.0
    """For all of a body to come."""
    header_seconds: float = 10.0
    """For all headers to come."""
    write_seconds: float = 60.0
    """For a client to take what waits for it."""


@dataclass(frozen=True, slots=True)
class Access:
    """Who is served."""

    token: str | None = None
    loopback: bool = True
    """Whether only this computer is."""

    def check(self, request: Request) -> None:
        """Raise `ApiError` for a request that may not ask."""
        if request.headers.get("origin") is not None:
            raise ApiError(_CORS_OFF, 403)
        # A page whose name was made to mean this computer sends no origin with what it reads.
        if self.loopback and self.token is None and not is_loopback(_host_of(request)):
            raise ApiError(_CORS_OFF, 403)
        if self.token is not None and request.scope["path"] not in OPEN_PATHS:
            given = _token_of(request)
            if not hmac.compare_digest(given.encode(errors="replace"), self.token.encode()):
                raise ApiError("the API key is missing or wrong", 401, code="invalid_api_key")


def is_loopback(host: str) -> bool:
    """Whether a host's name or address means this computer alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_of(request: Request) -> str:
    host = request.headers.get("host", "")
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _token_of(request: Request) -> str:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.casefold() == "bearer" else request.headers.get("x-api-key", "")


class BodyRoom:
    """What is left for bodies that have not come to their end: many long ones would fill all memory."""

    def __init__(self, limits: HttpLimits) -> None:
        self._left = max(limits.all_bodies_bytes, limits.body_bytes)

    def take(self, count: int) -> None:
        """Take room; raises `ApiError` where there is too little."""
        if count > self._left:
            headers = {"retry-after": "1", "connection": "close"}
            words = "other requests are being read; try again later"
            raise ApiError(words, 429, code="too_many_requests", headers=headers)
        self._left -= count

    def give_back(self, count: int) -> None:
        """Give room back."""
        self._left += count


async def read_object(request: Request, limits: HttpLimits, room: BodyRoom) -> Fields:
    """The request's JSON; raises `ApiError` for one that is too long, too slow or no JSON object."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and len(length) < 20 and int(length) > limits.body_bytes:
        raise _too_long(limits)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            await _fill(body, request.receive, limits, room)
        return parse_object(bytes(body))
    except TimeoutError as error:
        # What comes of it yet would be taken for the next request.
        close = {"connection": "close"}
        raise ApiError(
            f"the body did not come within {limits.body_seconds:g} s", 408, headers=close
        ) from error
    finally:
        room.give_back(len(body))


async def _fill(body: bytearray, receive: Receive, limits: HttpLimits, room: BodyRoom) -> None:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ApiError("the client has gone", 499)
        piece = message.get("body", b"")
        if len(body) + len(piece) > limits.body_bytes:
            raise _too_long(limits)
        room.take(len(piece))
        body += piece
        if not message.get("more_body", False):
            return


def _too_long(limits: HttpLimits) -> ApiError:
    most = f"the body is longer than {limits.body_bytes:,} bytes"
    return ApiError(most, 413, headers={"connection": "close"})
