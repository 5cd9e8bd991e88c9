"""The process in which templates are compiled and rendered, within limits of its own.

It reads requests from its input and writes a reply to each, until the input ends: so it goes when the
program that started it does. A message is a length and so many bytes: a request is marshalled, a reply is
a letter for its kind and text, since nothing of what comes from here is trusted.
"""

import marshal
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import IO, Any

RENDERED, FAILED, OVER_LIMIT = b"R", b"F", b"L"
"""Kinds of replies: the text, why the template failed, what it had too little of."""
UNICODE_ERRORS = "surrogatepass"
"""Text may hold halves of surrogate pairs, on either side."""
_LENGTH = struct.Struct(">Q")
_KEPT_TEMPLATES = 16
_MOST_OF_A_CAUSE = 1000


def read_message(stream: IO[bytes], most: int | None = None) -> bytes | None:
    """The next message; None where the stream ends. ValueError when it has more than `most` bytes."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if most is not None and length > most:
        raise ValueError(length)
    body = stream.read(length)
    return body if len(body) == length else None


def write_message(stream: IO[bytes], body: bytes) -> None:
    """Write one message."""
    stream.write(_LENGTH.pack(len(body)))
    stream.write(body)
    stream.flush()


def serve(seconds: float, memory_bytes: int) -> None:
    """Answer requests; each may take so much processor time, and all of the process so much memory."""
    from engine.templates.sandbox import make_environment

    compiled = lru_cache(maxsize=_KEPT_TEMPLATES)(make_environment().from_string)
    compiled("{% for message in messages %}{{ message['content'] | trim }}{% endfor %}")
    _limit_memory(memory_bytes)
    while (request := read_message(sys.stdin.buffer)) is not None:
        with _processor_time(seconds):
            reply = _reply(compiled, request)
        write_message(sys.stdout.buffer, reply)


def _reply(compiled: Callable[[str], Any], request: bytes) -> bytes:
    """Compile the template, and render it where the request has variables for it."""
    try:
        source, variables = marshal.loads(request)
        template = compiled(source)
        text = "" if variables is None else template.render(variables)
        return RENDERED + text.encode(errors=UNICODE_ERRORS)
    except MemoryError:
        return OVER_LIMIT + b"the template needs too much memory"
    except RecursionError:
        return OVER_LIMIT + b"the template is nested, or calls itself, too deeply"
    except Exception as error:
        return FAILED + _cause(error).encode(errors=UNICODE_ERRORS)


def _cause(error: Exception) -> str:
    message = str(error)[:_MOST_OF_A_CAUSE] or type(error).__name__
    line = getattr(error, "lineno", None)
    return f"line {line}: {message}" if line else message


@contextmanager
def _processor_time(seconds: float) -> Iterator[None]:
    """End the process when the block takes longer; nothing that runs in C can put the signal off."""
    if not hasattr(signal, "setitimer"):
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _limit_memory(size: int) -> None:
    try:
        import resource
    except ImportError:
        return
    for limit, most in ((resource.RLIMIT_AS, size), (resource.RLIMIT_CORE, 0)):
        # Where the system refuses, the parent watches what the process takes.
        with suppress(OSError, ValueError):
            _, hard = resource.getrlimit(limit)
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(limit, (most, most))
