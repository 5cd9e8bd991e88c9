"""Tools in `tui-chat ask`: calls are asked about on the terminal, and run while nothing else does."""

import argparse
import sys
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from app.chat.conversation import MessageNode, Role, Status
from app.cli.ask_chat import Talk
from app.cli.common import CommandError, say
from app.settings.file import Settings
from app.settings.servers.tool_servers import ALL_TOOLS, ToolServer
from app.terminal.controls import clean_lines
from app.tools.noted import NotedCall
from app.tools.offered import NO_TOOLS, Offered

if TYPE_CHECKING:
    from app.chat.events import SessionEvent
    from app.tools.servers import ToolServers

_CLOSE_SECONDS = 5.0
_ARGUMENTS = 200
"""Most characters of arguments in the line of a call that has run."""
_T = TypeVar("_T")


def add_tools(parser: argparse.ArgumentParser) -> None:
    """Add `--tools` and `--allow`."""
    parser.add_argument(
        "--tools", action="store_true", help="let the model call the tools of the servers in the settings"
    )
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="TOOL",
        help="--tools, and this one runs without being asked about (repeatable; '*' for all)",
    )


class AskedTools:
    """The tools of one question. A loop of its own runs while calls do."""

    def __init__(self, talk: Talk, servers: "ToolServers", *, may_ask: bool) -> None:
        """may_ask: whether there is somebody at a terminal."""
        import asyncio

        from app.chat.tool_use.use import ToolUse

        self._loop = asyncio.new_event_loop()
        self._chat, self._servers, self._may_ask = talk.chat, servers, may_ask
        self._use = ToolUse(talk.chat, servers, self._hear, talk.save)
        self._use.look(seen=True)
        self.offered: Offered = NO_TOOLS

    def start(self) -> None:
        """Start the servers; one that does not start costs a line that says so."""
        self.offered = self._do(self._use.ready())

    def run(self, answer: MessageNode) -> None:
        """Run an answer's calls, and say a line for each of what came of it."""
        before = len(self._chat.nodes)
        self._do(self._use.run(answer))
        for node in list(self._chat.nodes.values())[before:]:
            if node.role is Role.TOOL:
                say(f"{call_words(node.calls[0], _ARGUMENTS)}: {outcome(node)}")

    def refuse(self, answer: MessageNode, most: int) -> None:
        """Run nothing more: there were too many rounds of calls."""
        self._use.refuse_all(answer)
        say(f"tools have run {most} times for this question; it ends here")

    def close(self) -> None:
        """End the servers."""
        self._servers.close(_CLOSE_SECONDS)
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, _T]) -> _T:
        from asyncio import CancelledError

        task = self._loop.create_task(work)
        try:
            return self._loop.run_until_complete(task)
        except BaseException:
            if not task.done():
                task.cancel()
                with suppress(CancelledError):
                    self._loop.run_until_complete(task)
            raise

    def _hear(self, event: "SessionEvent") -> None:
        from app.chat.events import CallAsked, Notice
        from app.chat.tool_use.use import Choice

        if isinstance(event, Notice):
            say(event.text)
        elif isinstance(event, CallAsked) and (asked := self._use.asking) is not None:
            if self._may_ask:
                self._use.decide(_word_on(asked.call, asked.tool.description))
            else:
                say(f"{asked.call.name} is not allowed and nobody can be asked: --allow {asked.call.name}")
                self._use.decide(Choice.NO)


@contextmanager
def asked_tools(args: argparse.Namespace, settings: Settings, talk: Talk) -> Iterator[AskedTools | None]:
    """Give the tools of a question; None where none are wanted."""
    if not args.tools and not args.allow:
        yield None
        return
    named = _allowing(settings.tools, args.allow)
    may_ask = _is_terminal(sys.stdin) and _is_terminal(sys.stderr)
    _check(args, named, may_ask=may_ask)
    from app.tools.servers import ToolServers

    talk.chat.tools = tuple(name for name in talk.chat.tools if name in named) or tuple(named)
    tools = AskedTools(talk, ToolServers(lambda: named), may_ask=may_ask)
    try:
        tools.start()
        for name in args.allow:
            if name != ALL_TOOLS and name not in tools.offered.tools:
                say(f"warning: --allow {name}: there is no such tool; there are {_names(tools.offered)}")
        yield tools
    finally:
        tools.close()


def call_words(call: NotedCall, most: int) -> str:
    """Name a call in one line: the tool, its server and the arguments."""
    return f"{call.name} of {call.server or 'no server'} {' '.join(call.text.split())[:most]}"


def outcome(node: MessageNode) -> str:
    """Say what came of a call, in a few words."""
    if node.status is Status.COMPLETE:
        return f"{len(node.text):,} character{'' if len(node.text) == 1 else 's'}"
    return node.error or f"failed: {' '.join(node.text.split())}"


def _check(args: argparse.Namespace, named: Mapping[str, ToolServer], *, may_ask: bool) -> None:
    """Raise `CommandError` where tools cannot be had."""
    if not named:
        raise CommandError(
            "--tools: the settings name no servers of tools; a section such as [tools.files] with command "
            "and args adds one",
            code=2,
        )
    if args.json_schema or args.regex or args.grammar:
        raise CommandError("--tools: an answer that is held to a form calls nothing; leave one out", code=2)
    if not may_ask and not any(server.allow for server in named.values()):
        raise CommandError(
            "--tools asks on the terminal before each call, and there is none: allow tools with "
            "--allow TOOL, or with allow in the server's settings",
            code=2,
        )


def _allowing(named: Mapping[str, ToolServer], allowed: Sequence[str]) -> Mapping[str, ToolServer]:
    own = {name: replace(server, allow=(*server.allow, *allowed)) for name, server in named.items()}
    return MappingProxyType(own)


def _word_on(call: NotedCall, description: str) -> Any:
    """Show a call and ask about it; whatever is neither yes nor always is no."""
    from app.chat.tool_use.use import Choice

    shown = f"The model asks for {call.name} of {call.server}: {' '.join(description.split())[:300]}"
    print(clean_lines(f"{shown.rstrip(': ')}\n{call.text}"), file=sys.stderr)
    print("Run it? y: once, a: always for this question, Enter: no  ", end="", file=sys.stderr, flush=True)
    word = sys.stdin.readline().strip().lower()
    choices = {"y": Choice.ONCE, "yes": Choice.ONCE, "a": Choice.ALWAYS, "always": Choice.ALWAYS}
    return choices.get(word, Choice.NO)


def _names(offered: Offered) -> str:
    return ", ".join(offered.tools) or "none"


def _is_terminal(stream: Any) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False
