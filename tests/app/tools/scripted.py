"""Servers of tools without a process: a test says what each call comes to."""

import asyncio

from app.settings.servers.tool_servers import ToolServer
from app.tools.arguments import problem_with
from app.tools.offered import Tool, offered
from app.tools.results import ToolResult
from app.tools.servers import Ready
from app.tools.state import ServerState, State
from engine.api.tool_format import tool_format_of

HERMES = tool_format_of("<tool_call>")
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def call_text(name="read", path='"a.txt"', more=""):
    return f'<tool_call>{{"name": "{name}", "arguments": {{"path": {path}}}}}</tool_call>{more}'


class ScriptedServers:
    """One server with two tools. A call waits until its result is in `results`, or `held` is false."""

    def __init__(self, **settings):
        self.named = {"files": ToolServer("x", **settings)}
        self.tools = [Tool("files", "read", "Reads a file", SCHEMA), Tool("files", "list", "", {})]
        self.problems = ()
        self.calls = []
        self.held = False
        self.result = ToolResult("hello")
        self.going = asyncio.Event()
        self.stopped = []

    def states(self):
        return [self.state(name) for name in self.named]

    def state(self, name):
        return ServerState(name, State.READY, tuple(self.tools))

    async def ready(self, names):
        return Ready(offered(self.tools if "files" in names else ()), self.problems)

    async def problem_with(self, tool, arguments):
        return problem_with(arguments, tool.schema)

    async def call(self, tool, arguments):
        self.calls.append((tool.name, dict(arguments)))
        if self.held:
            await self.going.wait()
        return self.result

    async def stop(self, name):
        self.stopped.append(name)

    def close(self, timeout):
        pass
