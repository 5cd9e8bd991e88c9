"""A turn of several steps: an answer that calls tools, their results, and the answer behind them."""

import asyncio

from app.chat.answers.answering import Answering
from app.chat.conversation import MessageNode, Status
from app.chat.events import Changed, Notice
from app.chat.tool_use.use import MOST_STEPS
from app.chat.turn import Turn


class ToolSteps(Answering):
    """Goes on with a turn behind its calls."""

    def _ended(self, node: MessageNode, status: Status) -> None:
        """Run what an answer has called; one that was stopped or cut off calls nothing."""
        if not node.calls or status is not Status.COMPLETE or node.error or self._closed:
            super()._ended(node, status)
        elif self._step >= MOST_STEPS:
            self.tools.refuse_all(node)
            goes_on = f"{self.key('resume')} lets it go on"
            self._tell(Notice(f"Tools have run {MOST_STEPS} times in this turn; {goes_on}.", "information"))
            super()._ended(node, status)
        else:
            self._task = asyncio.get_running_loop().create_task(self._use_tools(node))
            self._tell(Changed())

    async def _use_tools(self, node: MessageNode) -> None:
        try:
            await self.tools.run(node)
        except asyncio.CancelledError:
            self._task, self.paused = None, False
            if not self._closed:
                self._all_over(Status.STOPPED)
            self._tell(Changed())
        except Exception as error:
            self._task = None
            self._break_off(error)
        else:
            self._launch_turn(Turn(self.conversation.leaf, None, step=self._step + 1))
