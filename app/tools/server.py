"""One server of tools from its start to its end, on the loop of the tools' thread."""

import asyncio
import json
import logging
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

import mcp.types as wire
from mcp import ClientSession
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from app.settings.servers.tool_servers import ToolServer
from app.tools.arguments import problem_with
from app.tools.offered import LONGEST_DESCRIPTION, LONGEST_SCHEMA, Tool, fits
from app.tools.results import ToolResult, result_of
from app.tools.state import ServerState, State
from app.tools.stdio import Pipes, ServerEndedError, started

_MOST_TOOLS, _MOST_PAGES = 128, 20
_CLIENT = wire.Implementation(name="tui-chat", version="1")
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class Server:
    """A server; all of it on one loop, but for `seen`, which any thread may read."""

    def __init__(self, name: str, settings: ToolServer) -> None:
        self._name, self._settings = name, settings
        self.seen = ServerState(name, State.OFF)
        self._session: ClientSession | None = None
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        """Set once the start has come to something."""
        self._leave = asyncio.Event()

    async def start(self) -> ServerState:
        """Start it unless it runs or has failed to; return what came of that."""
        if self._task is None or (self._task.done() and self.seen.state is State.ENDED):
            self._ready.clear()
            self._leave.clear()
            self.seen = ServerState(self._name, State.STARTING)
            self._task = asyncio.create_task(self._run())
        await self._ready.wait()
        return self.seen

    async def stop(self) -> None:
        """End it."""
        self._leave.set()
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Run a tool; what goes wrong is a result that says so."""
        session, seconds = self._session, self._settings.timeout
        if session is None:
            return ToolResult(f"{self._name} {self.seen.why or 'is not running'}.", failed=True)
        request = wire.CallToolRequest(
            params=wire.CallToolRequestParams(name=name, arguments=dict(arguments))
        )
        try:
            async with asyncio.timeout(seconds):
                found = await session.send_request(request, wire.CallToolResult)
        except TimeoutError:
            return ToolResult(f"{name} did not answer within {seconds:g} s; it was given up.", failed=True)
        except MCPError as error:
            return ToolResult(await self._said(error), failed=True)
        except ValidationError:
            return ToolResult(f"{self._name} answered with what is no result.", failed=True)
        return result_of(
            found.content,
            found.structured_content,
            failed=found.is_error,
            most_bytes=self._settings.most_bytes,
        )

    async def _said(self, error: MCPError) -> str:
        """What a server says against a call, or why it says nothing."""
        if error.code == wire.CONNECTION_CLOSED and self._task is not None:
            await asyncio.wait([self._task])
            return f"{self._name} {self.seen.why}."
        return f"{self._name} refused the call: {error.message}"

    def problem_with(self, name: str, arguments: Mapping[str, Any] | str) -> str | None:
        """Say what of a call does not fit the tool's schema, or return None."""
        tool = next((tool for tool in self.seen.tools if tool.name == name), None)
        return f"there is no tool {name}" if tool is None else problem_with(arguments, tool.schema)

    async def _run(self) -> None:
        try:
            why = await self._talk()
        except ServerEndedError as error:
            why = str(error)
        except Exception as error:
            _log.exception("server %s", self._name)
            why = f"cannot be used ({type(error).__name__}: {_one_line(str(error))})"
        was_ready = self.seen.state is State.READY
        if self._leave.is_set() and was_ready:
            self.seen = ServerState(self._name, State.OFF)
        else:
            _log.warning("server %s %s", self._name, why)
            self.seen = ServerState(self._name, State.ENDED if was_ready else State.FAILED, why=why)
        self._ready.set()

    async def _talk(self) -> str:
        """Have the server ready until it is left or ends; return why it ended."""
        async with started(self._name, self._settings) as pipes:
            try:
                async with ClientSession(pipes.incoming, pipes.outgoing, client_info=_CLIENT) as session:
                    # What is raised in here comes out as a group.
                    why = await _first(self._greet(session, pipes), self._left())
                    if why:
                        return why
                    self._session = session
                    self._ready.set()
                    return await _first(self._left(), _over(pipes))
            finally:
                self._session = None

    async def _left(self) -> str:
        await self._leave.wait()
        return "was left"

    async def _greet(self, session: ClientSession, pipes: Pipes) -> str:
        """Begin to talk; return why that cannot be, nothing where it can."""
        seconds = self._settings.timeout
        try:
            async with asyncio.timeout(seconds):
                await session.initialize()
                tools, left_out = await self._list(session)
        except TimeoutError:
            return f"did not answer within {seconds:g} s{_junk(pipes)}"
        except MCPError as error:
            if error.code == wire.CONNECTION_CLOSED:
                await pipes.over.wait()
                return f"{pipes.why} before it answered{_junk(pipes)}"
            return f"refused to talk ({_one_line(error.message)})"
        except (ValidationError, RuntimeError) as error:
            return f"does not speak MCP as it should ({_one_line(str(error))})"
        self.seen = ServerState(self._name, State.READY, tuple(tools), tuple(left_out))
        return ""

    async def _list(self, session: ClientSession) -> tuple[list[Tool], list[str]]:
        """Return the tools, and the names of those that cannot be offered."""
        tools: dict[str, Tool] = {}
        left_out: list[str] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            params = wire.PaginatedRequestParams(cursor=cursor)
            page = await session.send_request(wire.ListToolsRequest(params=params), wire.ListToolsResult)
            for tool in page.tools:
                schema = tool.input_schema
                fit = fits(tool.name) and len(json.dumps(schema)) <= LONGEST_SCHEMA
                if fit and len(tools) < _MOST_TOOLS:
                    description = (tool.description or "")[:LONGEST_DESCRIPTION]
                    tools[tool.name] = Tool(self._name, tool.name, description, schema)
                else:
                    left_out.append(tool.name[:40])
            cursor = page.next_cursor
            if not cursor:
                break
        return list(tools.values()), left_out


async def _over(pipes: Pipes) -> str:
    await pipes.over.wait()
    return pipes.why


async def _first(*waits: Coroutine[Any, Any, _T]) -> _T:
    """Wait for the first of several, and return what it has come to."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for task in tasks:
            task.cancel()


def _junk(pipes: Pipes) -> str:
    return f"; what it writes is no message: {pipes.junk}" if pipes.junk else ""


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
