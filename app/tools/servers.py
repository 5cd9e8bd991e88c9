"""All servers of tools, on a thread with a loop of its own: nothing of them holds up a frame.

The package `mcp` is imported there, when the first server is started.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from app.settings.servers.tool_servers import ToolServer
from app.tools.offered import NO_TOOLS, Offered, Tool, offered
from app.tools.results import ToolResult
from app.tools.state import ServerState, State

if TYPE_CHECKING:
    from app.tools.server import Server

_T = TypeVar("_T")
MISSING = "needs the package mcp: pip install 'tui-chat[tools]'"


@dataclass(frozen=True, slots=True)
class Ready:
    """What can be offered to a model."""

    tools: Offered = NO_TOOLS
    problems: tuple[str, ...] = ()
    """Why servers are not there, a sentence each."""


class ToolServers:
    """Starts servers when they are first needed and keeps them until the app ends.

    Used from the thread of another loop, whose tasks wait for what is done here.
    """

    def __init__(self, settings: Callable[[], Mapping[str, ToolServer]]) -> None:
        """settings: returns the servers as the settings have them now."""
        self._settings = settings
        self._servers: dict[str, Server] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def named(self) -> Mapping[str, ToolServer]:
        """The servers that the settings name."""
        return self._settings()

    def states(self) -> list[ServerState]:
        """Return how each server of the settings is doing."""
        return [self.state(name) for name in self.named]

    def state(self, name: str) -> ServerState:
        """Return how one server is doing."""
        server = self._servers.get(name)
        return server.seen if server is not None else ServerState(name, State.OFF)

    async def ready(self, names: Sequence[str]) -> Ready:
        """Start the servers of these names that do not run; return their tools, and why some are missing."""
        states = await asyncio.gather(*(self._do(self._start(name)) for name in names if name in self.named))
        tools: list[Tool] = [tool for state in states for tool in state.tools]
        gone = [f"the settings name no server {name}" for name in names if name not in self.named]
        down = [f"{state.name} {state.why}" for state in states if state.state is not State.READY]
        return Ready(offered(tools), tuple(f"Tools: {problem}." for problem in (*gone, *down)))

    async def problem_with(self, tool: Tool, arguments: Mapping[str, Any] | str) -> str | None:
        """Say what of a call does not fit, or return None."""
        return await self._do(self._check(tool, arguments))

    async def call(self, tool: Tool, arguments: Mapping[str, Any]) -> ToolResult:
        """Run a tool; whoever stops waiting has it given up."""
        return await self._do(self._call(tool, arguments))

    async def stop(self, name: str) -> None:
        """End a server, so that it begins anew when it is needed again."""
        if name in self._servers:
            await self._do(self._stop(name))

    def close(self, timeout: float) -> None:
        """End all servers; waits no longer than this."""
        self._closed = True
        if self._loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._stop_all(), self._loop)
        self._thread.join(timeout)

    async def _do(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Carry something out on the servers' loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._running_loop()))

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._run, args=(self._loop,), name="tools", daemon=True)
            self._thread.start()
        return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.close()

    async def _start(self, name: str) -> ServerState:
        if self._closed:
            return ServerState(name, State.OFF, why="is left")
        if name not in self._servers:
            try:
                from app.tools.server import Server
            except ModuleNotFoundError:
                return ServerState(name, State.FAILED, why=MISSING)
            self._servers[name] = Server(name, self.named[name])
        return await self._servers[name].start()

    async def _check(self, tool: Tool, arguments: Mapping[str, Any] | str) -> str | None:
        server = self._servers.get(tool.server)
        return server.problem_with(tool.name, arguments) if server is not None else f"{tool.server} is gone"

    async def _call(self, tool: Tool, arguments: Mapping[str, Any]) -> ToolResult:
        server = self._servers.get(tool.server)
        if server is None:
            return ToolResult(f"{tool.server} is gone.", failed=True)
        return await server.call(tool.name, arguments)

    async def _stop(self, name: str) -> None:
        if (server := self._servers.pop(name, None)) is not None:
            await server.stop()

    async def _stop_all(self) -> None:
        await asyncio.gather(*(self._stop(name) for name in list(self._servers)), return_exceptions=True)
        assert self._loop is not None
        self._loop.stop()
