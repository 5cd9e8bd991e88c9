"""The part of a tab in which one message is answered several times at once.

The answers are written beside each other; their tools run one answer after the other, so that whoever is
asked about a call knows whose it is.
"""

import asyncio
from functools import partial

from app.chat.answers.fan_out import FanColumn, FanOut
from app.chat.answers.running import RunningAnswer
from app.chat.answers.tool_steps import ToolSteps
from app.chat.conversation import MessageNode, Status
from app.chat.events import Changed, Notice, PathChanged
from app.chat.prompt import submitted
from app.chat.tool_use.use import MOST_STEPS
from app.chat.turn import own_fault
from app.models.backends.port import Asked, ChatModel
from engine import EngineError


class Fanning(ToolSteps):
    """Follows every answer to its end."""

    _calling: asyncio.Lock | None = None
    """Held by the answer whose tools run."""

    def waits_to_call(self, node_id: str) -> bool:
        """Whether an answer is one of several that goes on once its tools have run."""
        return node_id in self._columns

    def _launch_fan(self, fan: FanOut) -> None:
        self.fan, self._asking = fan, fan.text
        self._task = asyncio.get_running_loop().create_task(self._fan(fan))
        self._tell(Changed())

    async def _fan(self, fan: FanOut) -> None:
        """Have a message answered several times."""
        try:
            if model := await self._awake():
                offered = await self.tools.ready()
                await fan.run(model, self._services, offered, partial(self._begin_column, fan))
        except asyncio.CancelledError:
            pass
        except Exception as error:
            self._break_off(error)
        self._task = None
        reasons = list(dict.fromkeys(column.error for column in fan.columns if column.error is not None))
        if fan.asked is None:
            self._turn_failed(fan.text, None, reasons[0] if reasons else None)
        elif reasons:
            self._tell(Notice(" ".join(reasons), "error"))
        self._tell(Changed())
        if not self.busy:
            self._fan_over(fan)

    def _fan_over(self, fan: FanOut) -> None:
        self.paused = False
        fan.give_back(self._services.engine)
        if fan.asked is not None:
            self._all_over(Status.COMPLETE)

    def _begin_column(self, fan: FanOut, column: FanColumn, model: ChatModel, asked: Asked) -> RunningAnswer:
        conversation = self.conversation
        first = not any(other.node_id for other in fan.columns)
        shown = conversation.leaf
        if fan.asked is None and fan.text is not None:
            conversation.leaf = fan.parent
            fan.asked = conversation.add_user(fan.text).id
            self._asking = None
        conversation.leaf = fan.asked
        node = conversation.begin_answer(str(model.path), self._splitter(asked))
        column.first = column.node_id = node.id
        if not first:
            conversation.leaf = shown
        answer = self._follow(node, model, asked)
        self._tell_no_tools(asked, model)
        # The one that is shown may be over already, and says below which of how many it is.
        over = shown is not None and conversation.nodes[shown].status is not Status.STREAMING
        self._tell(PathChanged(since=None if first else shown) if first or over else Changed())
        return answer

    def _ends_beside_others(self, answer: RunningAnswer, status: Status) -> bool:
        fan, node = self.fan, answer.node
        column = fan.column_of(node.id) if fan is not None else None
        if fan is None or column is None:
            return False
        if not node.calls or status is not Status.COMPLETE or node.error or self._closed:
            return True
        if column.steps >= MOST_STEPS:
            self.tools.refuse_all(node)
            return True
        column.steps += 1
        work = self._use_column_tools(fan, column, answer.model, node)
        calls = self._columns[node.id] = asyncio.get_running_loop().create_task(work)
        # A task that is cancelled before its first step ends nothing by itself.
        calls.add_done_callback(lambda _: self._calls_over(fan, node))
        return True

    def _calls_over(self, fan: FanOut, node: MessageNode) -> None:
        del self._columns[node.id]
        self._tell(Changed())
        if not self.busy:
            self._fan_over(fan)

    async def _use_column_tools(
        self, fan: FanOut, column: FanColumn, model: ChatModel, node: MessageNode
    ) -> None:
        """Run the calls of one answer, and go on with it."""
        self._calling = self._calling or asyncio.Lock()
        number = fan.columns.index(column) + 1
        try:
            async with self._calling:
                result = await self.tools.run(node, f"Answer {number}, {column.variant.label},")
            offered = self.tools.offered
            ask = partial(fan.go_on, column, model, offered, result)
            asked = await submitted(self._services.encoders, ask)
        except asyncio.CancelledError:
            pass
        except EngineError as error:
            column.error = str(error)
        except Exception as error:
            self._tell(Notice(own_fault(error), "error"))
        else:
            self._go_on_column(column, model, asked, result)

    def _go_on_column(self, column: FanColumn, model: ChatModel, asked: Asked, result: str) -> None:
        with self.conversation.after(result):
            node = self.conversation.begin_answer(str(model.path), self._splitter(asked))
        column.node_id = node.id
        self._follow(node, model, asked)
        self._tell(PathChanged())
