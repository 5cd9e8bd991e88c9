"""A server's process: messages over its stdin and stdout, whatever else it does.

What it writes is bounded: a line that is too long or too much that nobody asked for ends it. What it says
on stderr goes to the log.
"""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCError, JSONRPCMessage, JSONRPCRequest, JSONRPCResponse, jsonrpc_message_adapter

from app.settings.servers.tool_servers import ToolServer

LONGEST_MESSAGE = 8 << 20
MOST_UNASKED = 4 << 20
"""Bytes that a server may write between two requests without answering any."""
_CHUNK = 1 << 16
_LEAVE_SECONDS = 1.0
"""How long a server may take to end by itself, and again once it was asked to."""
_POLL_SECONDS = 0.01
_LOGGED_LINES, _LOGGED_CHARACTERS, _SHOWN_CHARACTERS = 500, 500, 60
_PASSED_ON = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "TMPDIR",
    "TZ",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
)

Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]
Outgoing = MemoryObjectSendStream[SessionMessage]
_log = logging.getLogger(__name__)


class ServerEndedError(Exception):
    """A server cannot be talked to; says why, as what is said of it: "ended with code 3"."""


@dataclass(slots=True)
class Pipes:
    """What a session talks through."""

    incoming: Incoming
    outgoing: Outgoing
    over: anyio.Event = field(default_factory=anyio.Event)
    """Set once nothing comes any more; `why` says why."""
    why: str = ""
    junk: str = ""
    """The beginning of the first line that was no message."""

    def end(self, why: str) -> None:
        """Say why nothing comes any more; the first reason holds."""
        self.why = self.why or why
        self.over.set()


@asynccontextmanager
async def started(name: str, server: ToolServer) -> AsyncIterator[Pipes]:
    """Start a server and give what it is talked to through; it is ended behind that, with its children.

    Raises `ServerEndedError` where it cannot be started.
    """
    process = await _start(server)
    # Nothing is awaited before the `try`: whoever is cancelled here would leave the process behind.
    to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    pipes = Pipes(incoming, outgoing)
    reader = _Reader(name, process, to_session, pipes)
    reading = asyncio.create_task(reader.run())
    complaining = asyncio.create_task(_log_errors(name, process))
    writing = asyncio.create_task(_write(process, from_session, reader))
    try:
        yield pipes
    finally:
        incoming.close()
        await _uncancelled(_end(process))
        # Pipes that are not read to their end are closed by nobody.
        await asyncio.wait([reading, complaining], timeout=_LEAVE_SECONDS)
        for task in (reading, complaining, writing):
            task.cancel()
        await asyncio.gather(reading, complaining, writing, return_exceptions=True)
        for stream in (to_session, outgoing, from_session):
            stream.close()


def environment(server: ToolServer, own: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return all that a server gets of the environment."""
    return {name: own[name] for name in _PASSED_ON if name in own} | dict(server.env)


async def _start(server: ToolServer) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            str(Path(server.command).expanduser()) if server.command.startswith("~") else server.command,
            *server.args,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(server),
            # Ctrl+C in the terminal is not for it, and its children end with it.
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise ServerEndedError(f"cannot be started: there is no program {server.command}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ServerEndedError(f"cannot be started: {server.command}: {reason}") from error


class _Reader:
    """Carries what a server writes to the session."""

    def __init__(
        self,
        name: str,
        process: asyncio.subprocess.Process,
        to_session: MemoryObjectSendStream[SessionMessage | Exception],
        pipes: Pipes,
    ) -> None:
        self._name, self._process, self._to_session, self._pipes = name, process, to_session, pipes
        self._unasked = 0
        self._junk = 0

    def asked(self) -> None:
        """Something was asked for: what comes is an answer."""
        self._unasked = 0

    async def run(self) -> None:
        """Read until the server ends; one that writes what cannot be read is ended."""
        assert self._process.stdout is not None
        try:
            await self._carry(self._process.stdout)
            await _has_ended(self._process)
            self._pipes.end(_ended(self._process.returncode))
        except ServerEndedError as error:
            self._pipes.end(str(error))
            _signal(self._process, signal.SIGTERM)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._pipes.end("was left")
        finally:
            self._to_session.close()
        while await self._process.stdout.read(_CHUNK):
            pass

    async def _carry(self, stdout: asyncio.StreamReader) -> None:
        held = bytearray()
        while chunk := await stdout.read(_CHUNK):
            *lines, rest = chunk.split(b"\n")
            for line in lines:
                await self._take(bytes(held + line))
                held.clear()
            held += rest
            if len(held) > LONGEST_MESSAGE:
                raise ServerEndedError(f"wrote a line of more than {LONGEST_MESSAGE >> 20} MiB")

    async def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        message: JSONRPCMessage | None
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            message = None
            self._note_junk(line)
        if not isinstance(message, JSONRPCResponse | JSONRPCError):
            self._unasked += len(line)
            if self._unasked > MOST_UNASKED:
                what = "messages that nobody asked for" if message is not None else "what is no message"
                raise ServerEndedError(f"wrote more than {MOST_UNASKED >> 20} MiB of {what}")
        if message is not None:
            await self._to_session.send(SessionMessage(message))

    def _note_junk(self, line: bytes) -> None:
        self._pipes.junk = self._pipes.junk or _logged(line)[:_SHOWN_CHARACTERS]
        if self._junk < _LOGGED_LINES:
            _log.warning("%s wrote what is no message: %s", self._name, _logged(line))
        self._junk += 1


async def _write(
    process: asyncio.subprocess.Process,
    from_session: MemoryObjectReceiveStream[SessionMessage],
    reader: _Reader,
) -> None:
    """Carry what the session says to the server."""
    assert process.stdin is not None
    with suppress(OSError):
        async for said in from_session:
            if isinstance(said.message, JSONRPCRequest):
                reader.asked()
            text = said.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(f"{text}\n".encode("utf-8", "replace"))
            await process.stdin.drain()


async def _log_errors(name: str, process: asyncio.subprocess.Process) -> None:
    """Put what a server says on stderr into the log, the first lines of it."""
    assert process.stderr is not None
    lines, held = 0, b""
    while chunk := await process.stderr.read(_CHUNK):
        *whole, held = (held + chunk).split(b"\n")
        held = held[-_CHUNK:]
        for line in whole[: _LOGGED_LINES - lines]:
            _log.info("%s: %s", name, _logged(line))
            lines += 1
    if held and lines < _LOGGED_LINES:
        _log.info("%s: %s", name, _logged(held))


def _logged(line: bytes) -> str:
    text = line[: 4 * _LOGGED_CHARACTERS].decode("utf-8", "replace")[:_LOGGED_CHARACTERS]
    return repr(text)[1:-1]


def _ended(code: int | None) -> str:
    if code is None:
        return "closed its output"
    return f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"


async def _has_ended(process: asyncio.subprocess.Process) -> bool:
    """Wait a while for a process to end; tell whether it has.

    `Process.wait` waits for its pipes, too, which a child may hold open.
    """
    deadline = asyncio.get_running_loop().time() + _LEAVE_SECONDS
    while process.returncode is None and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(_POLL_SECONDS)
    return process.returncode is not None


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Tell a server and what it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Let a server end by itself, ask it to, and at last end it; what it has started is asked to, too."""
    assert process.stdin is not None
    process.stdin.close()
    await _has_ended(process)
    for number in (signal.SIGTERM, signal.SIGKILL):
        _signal(process, number)
        if await _has_ended(process):
            return
    _log.warning("process %d of a tool server is left behind: it cannot be ended", process.pid)


async def _uncancelled(work: Coroutine[None, None, None]) -> None:
    """Carry something out to its end, also for a task that is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
