"""What can go wrong on the way to a file, each in one line with what to do about it."""

import errno
import http.client
import socket
import ssl
import time
from email.utils import parsedate_to_datetime
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from app.settings.words import wait_text

_FULL = (errno.ENOSPC, errno.EDQUOT)


class FetchError(Exception):
    """A fetch cannot go on; the message is shown as one line.

    again: it may work at once, or after `wait` seconds. unreachable: nobody answered at all. status: that
    of the HTTP answer, where there was one. useless: what has come will never be a model.
    """

    def __init__(
        self,
        message: str,
        *,
        again: bool = False,
        unreachable: bool = False,
        wait: float | None = None,
        status: int | None = None,
        useless: bool = False,
    ) -> None:
        super().__init__(message)
        self.again = again
        self.unreachable = unreachable
        self.wait = wait
        self.status = status
        self.useless = useless


def host_of(url: str) -> str:
    """The host of an address, for messages: never the name and password that an address may hold."""
    return urlsplit(url).hostname or url


def web_error(error: Exception, url: str, login: str = "") -> FetchError:
    """Say what `error`, raised while `url` was asked for, means. login: how to log in there."""
    if isinstance(error, FetchError):
        return error
    if isinstance(error, HTTPError):
        return status_error(error.code, url, login, retry_after(error.headers.get("Retry-After")))
    cause = error.reason if isinstance(error, URLError) and isinstance(error.reason, Exception) else error
    host = host_of(url)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return FetchError(
            f"the certificate of {host} cannot be verified ({cause.verify_message}); where a proxy or an "
            "index of your company has its own, name its file in SSL_CERT_FILE"
        )
    if isinstance(cause, ssl.SSLError):
        return FetchError(
            f"{host} cannot be reached safely ({_reason(cause)}); check the address and the proxy"
        )
    if isinstance(cause, socket.gaierror):
        return FetchError(f"no network, or there is no host {host}; check the connection", unreachable=True)
    if isinstance(cause, TimeoutError):
        return FetchError(f"{host} does not answer; try again later", unreachable=True)
    if isinstance(cause, ConnectionResetError | BrokenPipeError | http.client.HTTPException):
        return cut_error(url)
    if isinstance(cause, OSError):
        return FetchError(
            f"{host} cannot be reached ({_reason(cause)}); check the network and the proxy", unreachable=True
        )
    return FetchError(f"{host}: {_reason(cause)}")


def status_error(status: int, url: str, login: str = "", wait: float | None = None) -> FetchError:
    """Say what an HTTP status means. wait: the seconds that the server asks to wait."""
    host, path = host_of(url), urlsplit(url).path
    if status == 401:
        way = login or "put them into the address, as https://NAME:PASSWORD@HOST/…"
        said = f"{host} asks for a name and a password or a token (401); {way}"
    elif status == 403:
        way = login or "it may be private, or its address too old: get a new one"
        said = f"{host} refuses {path} (403); {way}"
    elif status in (404, 410):
        said = f"{host} has no {path} ({status}); check the name"
    elif status == 429:
        when = wait_text(wait)
        said = f"{host} has been asked too often (429); try again {f'in {when}' if when else 'later'}"
    elif status >= 500:
        said = f"{host} has a fault ({status}); try again later"
    else:
        said = f"{host} answers {path} with status {status}; check the address"
    return FetchError(said, again=status == 429 or status >= 500, wait=wait, status=status)


def cut_error(url: str) -> FetchError:
    """The connection ended too early."""
    return FetchError(f"the connection to {host_of(url)} was cut; fetch again, it goes on there", again=True)


def wrong_contents(name: str, found: str, expected: str) -> FetchError:
    """A file, deleted by now, had another SHA-256 than its source says."""
    return FetchError(
        f"{name} is not what its checksum says ( {found[:12]}…, not {expected[:12]}…) and was deleted: "
        "fetch it again, or from another source",
        useless=True,
    )


def disk_error(error: OSError, folder: object) -> FetchError:
    """Say why nothing can be written into a folder."""
    if error.errno in _FULL:
        return FetchError(f"the disk of {folder} is full; free some space and fetch again, it goes on there")
    return FetchError(f"{error.filename or folder} cannot be written ({_reason(error)})")


def retry_after(value: str | None) -> float | None:
    """The seconds of a Retry-After header: a number or a date; None for anything else."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


def _reason(error: BaseException) -> str:
    return " ".join((getattr(error, "strerror", None) or str(error) or type(error).__name__).split())
