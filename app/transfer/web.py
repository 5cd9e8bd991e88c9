"""Opening addresses: proxies, certificates, logins, redirects, and an end that another thread may call."""

import http.client
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from email.message import Message
from functools import lru_cache, partial
from typing import IO, Any
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import (
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    Request,
    build_opener,
)

from app.transfer.errors import FetchError, cut_error, host_of, web_error

_TIMEOUT = 30.0
_AGENT = "tui-chat"


class Stopped(Exception):
    """The fetch was told to stop."""


class Stop:
    """Tells one fetch to stop: what waits wakes up, and what reads from a server is cut off."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def set(self) -> None:
        """Stop; may be called by any thread, and again."""
        with self._lock:
            self._event.set()
            self._cut()

    def check(self) -> None:
        """Raise `Stopped` once `set` was called."""
        if self._event.is_set():
            raise Stopped

    def wait(self, seconds: float) -> None:
        """Wait, but raise `Stopped` as soon as `set` is called."""
        self._event.wait(seconds)
        self.check()

    def watch(self, connection: socket.socket) -> None:
        """Cut this connection off when `set` is called; the one before is finished with."""
        with self._lock:
            self._socket = connection
            if self._event.is_set():
                self._cut()

    def _cut(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                # The method of ssl.SSLSocket would take the encryption from under the thread that reads.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class Web:
    """One fetch's way to servers. certificates: a file to trust instead of the system's."""

    def __init__(self, stop: Stop, *, certificates: str | None = None) -> None:
        self._stop = stop
        self._certificates = certificates
        self._opener: OpenerDirector | None = None

    def trusting(self, certificates: str | None) -> "Web":
        """The same way with other certificates to trust; None for the system's."""
        return Web(self._stop, certificates=certificates)

    def get(
        self, url: str, headers: Mapping[str, str] | None = None, *, login: str = ""
    ) -> http.client.HTTPResponse:
        """Ask for an address and return the answer, whose body is still to be read and closed.

        Raises `FetchError` for every failure and every status but success; `login` says in it how to log in.
        Credentials go to the host of `url` alone.
        """
        self._stop.check()
        address, credentials = split_login(url)
        if urlsplit(address).scheme not in ("http", "https"):
            raise FetchError(f"{address}: only http and https addresses can be fetched")
        sent = {"User-Agent": _AGENT, "Accept-Encoding": "identity"} | credentials | dict(headers or {})
        try:
            answer = self._open(Request(address, headers=sent))
        except Exception as error:
            self._stop.check()
            raise web_error(error, address, login) from error
        return answer

    def _open(self, request: Request) -> Any:
        if self._opener is None:
            handlers = (_Http(self._stop), _Https(self._stop, self._certificates), _Redirect())
            self._opener = build_opener(*handlers)
        return self._opener.open(request, timeout=_TIMEOUT)


def read_body(answer: http.client.HTTPResponse, most: int) -> bytes:
    """The body of an answer, up to `most` bytes. Raises `FetchError` when the connection is cut before."""
    try:
        body = answer.read(most)
    except (OSError, http.client.HTTPException) as error:
        raise cut_error(answer.geturl()) from error
    if answer.length and len(body) < most:
        raise cut_error(answer.geturl())
    return body


def split_login(url: str) -> tuple[str, dict[str, str]]:
    """Take name and password out of an address; return it without them, and the header that sends them."""
    from base64 import b64encode

    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, {}
    name, _, password = user.partition(":")
    token = b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
    return urlunsplit(parts._replace(netloc=host)), {"Authorization": f"Basic {token}"}


class _HttpConnection(http.client.HTTPConnection):
    def __init__(self, *args: Any, stop: Stop, **options: Any) -> None:
        super().__init__(*args, **options)
        self._stop = stop

    def connect(self) -> None:
        super().connect()
        self._stop.watch(self.sock)


class _HttpsConnection(http.client.HTTPSConnection):
    def __init__(self, *args: Any, stop: Stop, **options: Any) -> None:
        super().__init__(*args, **options)
        self._stop = stop

    def connect(self) -> None:
        super().connect()
        self._stop.watch(self.sock)


class _Http(HTTPHandler):
    def __init__(self, stop: Stop) -> None:
        super().__init__()
        self._connection = partial(_HttpConnection, stop=stop)

    def http_open(self, req: Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, req)


class _Https(HTTPSHandler):
    def __init__(self, stop: Stop, certificates: str | None) -> None:
        super().__init__()
        self._stop, self._certificates = stop, certificates

    def https_open(self, req: Request) -> http.client.HTTPResponse:
        context = _context(self._certificates)
        return self.do_open(partial(_HttpsConnection, stop=self._stop, context=context), req)


@lru_cache(maxsize=4)
def _context(certificates: str | None) -> ssl.SSLContext:
    """Whom to trust; reading the system's list takes as long as a request."""
    return ssl.create_default_context(cafile=certificates)


class _Redirect(HTTPRedirectHandler):
    """Follows redirects; a token meant for one host is not shown to another."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> Request | None:
        """The request that follows, or an error for one that would give up encryption."""
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        allowed = ("https",) if old.scheme == "https" else ("http", "https")
        if new.scheme not in allowed:
            host = host_of(req.full_url)
            raise FetchError(
                f"{host} sends on to an address of {new.scheme}:, not https:; use another source"
            )
        request = super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]
        if request is not None and old.netloc != new.netloc:
            request.remove_header("Authorization")
        return request
