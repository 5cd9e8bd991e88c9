"""The calls of one chat: each is shown, asked about, run while the chat is looked at, and put down."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from app.chat.conversation import Conversation, MessageNode, Status
from app.chat.events import CallAsked, Changed, Notice, PathChanged, SessionEvent, TabState
from app.tools.noted import NotedCall
from app.tools.offered import NO_TOOLS, Offered, Tool
from app.tools.servers import ToolServers

MOST_STEPS = 8
"""How many times tools run in one turn."""
_MODEL = "The model"
_REFUSED = "The user refused this call."
_STOPPED = "The user stopped this call; there is no result."
_TOO_MANY = f"Not run: tools have run {MOST_STEPS} times in this turn already."


class Choice(StrEnum):
    """What the reader says to a call."""

    ONCE = "once"
    ALWAYS = "always"
    NO = "no"


@dataclass(frozen=True, slots=True)
class AskedCall:
    """A call that waits for the reader's word."""

    node_id: str
    call: NotedCall
    tool: Tool
    who: str = _MODEL
    """Whose call it is, where several answers are written at once."""


class ToolUse:
    """Carries out what models ask for, one call after the other. Lives on the user interface's thread."""

    def __init__(
        self,
        conversation: Conversation,
        servers: ToolServers | None,
        tell: Callable[[SessionEvent], None],
        save: Callable[[], None],
    ) -> None:
        """servers: None where there are no tools."""
        self.asking: AskedCall | None = None
        """The call that the reader is asked about."""
        self.offered: Offered = NO_TOOLS
        """What the model was told of last."""
        self.running = ""
        """Id of the message whose call runs."""
        self._conversation, self._servers, self._tell, self._save = conversation, servers, tell, save
        self._seen = asyncio.Event()
        self._waits = False
        """Whether a call waits until the chat is looked at."""
        self._decision: asyncio.Future[Choice] | None = None
        self._always: set[tuple[str, str]] = set()
        """Tools that run without being asked about in this chat, until it is closed."""
        self._told: set[str] = set()
        self._who = _MODEL
        self._open: list[str] = []
        """Ids of the messages whose results are to come."""

    @property
    def state(self) -> TabState | None:
        """What the chat is doing while tools are used; None while they are not."""
        if self.asking is not None or self._waits:
            return TabState.ASKING
        return TabState.CALLING if self._open else None

    def call_state(self, node_id: str) -> TabState:
        """What a call is doing that has not ended."""
        if self.running == node_id:
            return TabState.CALLING
        asked = self.asking is not None and self.asking.node_id == node_id
        return TabState.ASKING if asked else TabState.QUEUED

    def state_of(self, nodes: Sequence[MessageNode]) -> TabState | None:
        """What the calls among some messages are doing; None where all have ended."""
        states = {self.call_state(node.id) for node in nodes if node.id in self._open}
        order = (TabState.CALLING, TabState.ASKING, TabState.QUEUED)
        return next((state for state in order if state in states), None)

    def look(self, seen: bool) -> None:
        """Say whether the chat is looked at now: calls wait for that."""
        if seen:
            self._seen.set()
        else:
            self._seen.clear()

    async def ready(self) -> Offered:
        """Return the tools of the servers that are switched on, and tell once why others are not there."""
        self.offered = NO_TOOLS
        if self._servers is not None and self._conversation.tools:
            found = await self._servers.ready(self._conversation.tools)
            for problem in found.problems:
                if problem not in self._told:
                    self._told.add(problem)
                    self._tell(Notice(problem))
            self.offered = found.tools
        return self.offered

    def switch(self, name: str, on: bool) -> None:
        """Offer the tools of a server in this chat from the next answer on, or not any more."""
        others = tuple(other for other in self._conversation.tools if other != name)
        self._conversation.tools = (*others, name) if on else others
        self._told.clear()
        self._save()
        self._tell(Changed())

    def decide(self, choice: Choice) -> None:
        """Take the reader's word on the call that is asked about."""
        if self._decision is not None and not self._decision.done():
            self._decision.set_result(choice)

    async def run(self, node: MessageNode, who: str = _MODEL) -> str:
        """Run an answer's calls and put down what comes of them; what is stopped is put down as that.

        who: whose calls they are, for the reader. Returns the id of the last result.
        """
        self._who = who
        nodes = self._place(node)
        try:
            for one in nodes:
                await self._run_one(one)
        finally:
            self.give_up()
        return nodes[-1].id

    def refuse_all(self, node: MessageNode) -> None:
        """Put down an answer's calls that do not run, because there were too many in this turn."""
        for one in self._place(node):
            self._end(one, Status.STOPPED, _TOO_MANY, "not run, there were too many")

    def give_up(self) -> None:
        """Put down what is to come as stopped."""
        self.asking, self._decision, self._waits, self.running = None, None, False, ""
        for node_id in list(self._open):
            self._end(self._conversation.nodes[node_id], Status.STOPPED, _STOPPED, "stopped")

    def _place(self, node: MessageNode) -> list[MessageNode]:
        """Put a message for each call behind the answer, all of them at once: each is to have its result."""
        with self._conversation.after(node.id):
            nodes = [self._conversation.add_call(self._with_server(call)) for call in node.calls]
        self._open = [node.id for node in nodes]
        self._save()
        self._tell(PathChanged())
        return nodes

    def _with_server(self, call: NotedCall) -> NotedCall:
        tool = self.offered.tools.get(call.name)
        return NotedCall(call.id, call.name, call.arguments, tool.server if tool is not None else "")

    async def _run_one(self, node: MessageNode) -> None:
        call = node.calls[0]
        tool = self.offered.tools.get(call.name)
        problem = await self._problem_with(call, tool)
        if problem is not None or tool is None or self._servers is None:
            self._end(node, Status.ERROR, f"Not run: {problem}.", problem)
            return
        if not await self._may_run(node, call, tool):
            self._end(node, Status.STOPPED, _REFUSED, "refused")
            return
        self.running = node.id
        self._tell(PathChanged(since=node.id))
        assert not isinstance(call.arguments, str)
        result = await self._servers.call(tool, call.arguments)
        self.running = ""
        self._end(node, Status.ERROR if result.failed else Status.COMPLETE, result.text, None)

    async def _problem_with(self, call: NotedCall, tool: Tool | None) -> str | None:
        """Say why a call cannot run, whoever allows it, or return None."""
        if tool is None or self._servers is None:
            return f"there is no tool {call.name}; there are {', '.join(self.offered.tools) or 'none'}"
        return await self._servers.problem_with(tool, call.arguments)

    async def _may_run(self, node: MessageNode, call: NotedCall, tool: Tool) -> bool:
        assert self._servers is not None
        settings = self._servers.named.get(tool.server)
        free = (tool.server, tool.name) in self._always or (
            settings is not None and settings.allows(tool.name)
        )
        if settings is None or not settings.hidden or not free:
            await self._until_seen(node)
        if free:
            return True
        self.asking = AskedCall(node.id, call, tool, self._who)
        self._decision = asyncio.get_running_loop().create_future()
        self._tell(PathChanged(since=node.id))
        self._tell(CallAsked())
        choice = await self._decision
        self.asking = self._decision = None
        if choice is Choice.ALWAYS:
            self._always.add((tool.server, tool.name))
        return choice is not Choice.NO

    async def _until_seen(self, node: MessageNode) -> None:
        if self._seen.is_set():
            return
        self._waits = True
        self._tell(PathChanged(since=node.id))
        await self._seen.wait()
        self._waits = False

    def _end(self, node: MessageNode, status: Status, text: str, error: str | None) -> None:
        self._open.remove(node.id)
        self._conversation.end_call(node.id, status, text, error)
        self._save()
        self._tell(PathChanged(since=node.id))
