"""Rendering where it can be stopped: one worker process for all templates, watched and replaced.

A template may run for so much processor time and take so much memory; a worker that is over is ended. One
that was ended from outside is replaced, and asked again.
"""

import _thread
import marshal
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from engine.api.errors import TemplateError
from engine.templates import worker

MAX_SOURCE = 1 << 20
_WATCH_SECONDS = 0.05
_LONGEST_CAUSE = 200
_PIPE_BYTES = 1 << 20
_LEAST_REPLY, _REPLY_PER_BYTE = 1 << 20, 8
_TRIES = 2


class TemplateLimitError(TemplateError):
    """A template needs more time or memory than it may have."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one template may take."""

    processor_seconds: float = 2.0
    """Of processor time, so that a busy machine fails no template."""
    wall_seconds: float = 20.0
    """For a worker that gets no processor time, and for systems that cannot limit it."""
    memory_bytes: int = 1 << 30


class Renderer:
    """Compiles and renders templates, one at a time. Safe to use from several threads."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._lock = threading.Lock()
        self._worker: _Worker | None = None

    def start(self) -> None:
        """Start the worker beforehand, without waiting for it."""
        # Whoever holds the lock has started it. The first template says why it cannot be.
        if self._lock.acquire(blocking=False):
            try:
                with suppress(OSError):
                    self._running()
            finally:
                self._lock.release()

    def check(self, source: str) -> None:
        """TemplateError where the template is no template."""
        if len(source) > MAX_SOURCE:
            raise TemplateError(f"the template has {len(source)} characters; at most {MAX_SOURCE} are read")
        self._ask(source, None)

    def render(self, source: str, variables: dict[str, Any]) -> str:
        """The rendered text; TemplateError when the template fails or asks for too much."""
        return self._ask(source, variables)

    def _ask(self, source: str, variables: dict[str, Any] | None) -> str:
        try:
            return self._text(marshal.dumps((source, variables)))
        except TemplateLimitError:
            # Its worker has ended; the next template finds one that is there.
            self.start()
            raise

    def _text(self, request: bytes) -> str:
        reply = self._reply(request)
        kind, text = reply[:1], reply[1:]
        if kind == worker.RENDERED:
            return text.decode(errors=worker.UNICODE_ERRORS)
        cause = " ".join(text.decode(errors="replace").split())
        cause = cause if len(cause) <= _LONGEST_CAUSE else f"{cause[:_LONGEST_CAUSE]}…"
        raise (TemplateLimitError if kind == worker.OVER_LIMIT else TemplateError)(cause)

    def _reply(self, request: bytes) -> bytes:
        with self._lock:
            for _ in range(_TRIES):
                try:
                    reply = self._running().reply(request)
                except (OSError, RuntimeError) as error:
                    raise TemplateError(f"no process for it can be started: {error}") from error
                if reply is not None:
                    return reply
        raise TemplateLimitError("the process that renders it ended again and again")

    def _running(self) -> "_Worker":
        if self._worker is None or not self._worker.alive:
            self._worker = _Worker(self._limits)
        return self._worker


class _Worker:
    """One process and the pipes to it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._over: str | None = None
        # A session of its own: Ctrl+C in the terminal is not meant for it.
        self._process = subprocess.Popen(
            _command(limits),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests, self._replies = self._process.stdin, self._process.stdout
        _widen(self._requests)
        _widen(self._replies)

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def reply(self, request: bytes) -> bytes | None:
        """The reply, None where somebody else ended the process; TemplateLimitError when it was over."""
        answered = threading.Event()
        # `threading.Thread` would wait until it runs, which on a busy machine takes longer than rendering.
        _thread.start_new_thread(self._watch, (answered,))
        try:
            reply = self._exchange(request)
        except BaseException:
            # What was asked and what is answered would never match again.
            self._end()
            raise
        finally:
            answered.set()
        if reply is None:
            self._end()
            if self._process.returncode == -getattr(signal, "SIGPROF", 0):
                self._over = f"the template ran longer than {self._limits.processor_seconds:g} s"
            if self._over is not None:
                raise TemplateLimitError(self._over)
        elif reply[:1] == worker.OVER_LIMIT:
            # Compiled templates are kept, and may be what takes the memory.
            self._end()
        return reply

    def _exchange(self, request: bytes) -> bytes | None:
        most = _LEAST_REPLY + _REPLY_PER_BYTE * len(request)
        try:
            worker.write_message(self._requests, request)
            return worker.read_message(self._replies, most)
        except OSError:
            return None
        except ValueError:
            raise TemplateLimitError(f"the template renders more than {most} bytes") from None

    def _watch(self, answered: threading.Event) -> None:
        """End the process when it is over a limit that it cannot hold itself to."""
        latest = time.monotonic() + self._limits.wall_seconds
        while not answered.wait(_WATCH_SECONDS):
            if time.monotonic() > latest:
                self._over = f"the template was not rendered within {self._limits.wall_seconds:g} s"
            elif _memory_of(self._process.pid) > self._limits.memory_bytes:
                self._over = "the template needs too much memory"
            else:
                continue
            self._process.kill()
            return

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._requests, self._replies):
            with suppress(OSError):
                pipe.close()


def _command(limits: Limits) -> list[str]:
    """Python without the environment's and the user's additions, told where to find what it needs."""
    folders = [str(Path(__file__).parents[2])]
    for name in ("jinja2", "markupsafe"):
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            folders.append(str(Path(spec.origin).parents[1]))
    find = f"import sys; sys.path += {list(dict.fromkeys(folders))!r}"
    serve = f"worker.serve({limits.processor_seconds!r}, {limits.memory_bytes!r})"
    code = f"{find}; from engine.templates import worker; {serve}"
    return [sys.executable, "-I", "-S", "-c", code]


def _widen(pipe: IO[bytes]) -> None:
    """Let long messages through at once, where the system has room for that."""
    with suppress(ImportError, AttributeError, OSError):
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _memory_of(pid: int) -> int:
    import psutil

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


SHARED = Renderer()
"""The one of this process."""
