"""One tab without its widgets: a conversation, its model and the answer that is being written.

A session runs on the user interface's thread. It tells what happens as `SessionEvent`s; whoever
shows the tab turns them into widgets, and a tab that nobody looks at costs no painting.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from app.chat.answers.fan_out import FanOut
from app.chat.context.blocked import RoomMaker
from app.chat.conversation import Conversation, MessageNode, Role, Status
from app.chat.draft import Writing
from app.chat.events import (
    NOT_WRITING,
    Changed,
    Notice,
    PathChanged,
    SessionEvent,
    TabState,
    TextReturned,
)
from app.chat.model_slot import ModelSlot
from app.chat.prompt import chat_too_long
from app.chat.shared import Services
from app.chat.turn import Turn
from app.models.backends.port import ChatModel
from app.models.builtin import model_title
from app.models.port import Steerable
from app.writing.fan import Variant
from engine import Priority, Thinking


class ChatSession(RoomMaker):
    """One tab. `report` receives every event, in order."""

    def __init__(
        self,
        conversation: Conversation,
        services: Services,
        report: Callable[["ChatSession", SessionEvent], None],
    ) -> None:
        super().__init__(conversation, services, self._tell_reader)
        self.models = ModelSlot(
            services.engine,
            self._model_opened,
            self._return_queue,
            self._tell_reader,
            choose_key=self.key("choose_model"),
        )
        self.writing = Writing(conversation, self._save)
        self.unread = False
        self.read_only = False
        """Whether another window writes this chat."""
        self.queued: list[str] = []
        self._report = report
        self._send_next = False
        """Whether the next queued message is sent although the answer before it was stopped."""

    @property
    def model(self) -> ChatModel | None:
        """The model that answers, None before one is open."""
        return self.models.current

    @property
    def state(self) -> TabState:
        """What the tab is doing now."""
        if self.paused:
            return TabState.PAUSED
        if self.running:
            if self.stats is not None and self.stats.state in NOT_WRITING:
                return NOT_WRITING[self.stats.state]
            begins = all(answer.begins for answer in self.running)
            return TabState.READING if begins else TabState.GENERATING
        if (uses := self.tools.state) is not None:
            return uses
        if self._task is not None and not self.models.waking:
            return TabState.READING
        if self.models.loading:
            return TabState.LOADING
        last = self.conversation.nodes.get(self.conversation.leaf or "")
        failed = self.models.error is not None and self.model is None
        return TabState.ERROR if failed or (last and last.status is Status.ERROR) else TabState.IDLE

    @property
    def reading_fraction(self) -> float:
        """How much of the prompt has been read, 0 to 1."""
        if self.stats is None or not self.stats.prompt_tokens:
            return 0.0
        return min(1.0, self.stats.computed_tokens / self.stats.prompt_tokens)

    def open_model(self, path: Path) -> None:
        """Load a model for this tab; the present one stays until the new one is there."""
        self.models.open(path)

    def cancel_load(self) -> bool:
        """Give up a load that is under way; tell whether there was one."""
        return self.models.cancel()

    def send(self, text: str) -> None:
        """Ask with a new message; while the tab is busy or loading the message waits its turn."""
        waits = self.blocked is not None or (self.model is None and self.models.loading)
        if self.busy or waits:
            self.queued.append(text)
            self._tell(Changed())
        else:
            self._launch(Turn(self.conversation.leaf, text))

    def edit(self, node_id: str, text: str) -> None:
        """Ask with a message written differently, or go on with an answer that begins differently.

        The old branch stays in the tree.
        """
        node = self.conversation.nodes[node_id]
        again = node_id if node.role is Role.ASSISTANT else None
        turn = Turn(node.parent, text, again=again, replaces=node_id)
        if not self._refuse_while_busy(turn):
            self._launch(turn)

    def resume(self) -> None:
        """Go on with the last answer, which was stopped or cut off, from its token ids."""
        if self._refuse_while_busy(None):
            return
        leaf = self.conversation.nodes.get(self.conversation.leaf or "")
        answer = leaf if leaf is not None and leaf.role is Role.ASSISTANT else None
        if leaf is not None and leaf.role is Role.TOOL:
            self._launch(Turn(leaf.id, None))
        elif answer is None or (answer.status is Status.COMPLETE and not answer.error):
            self._tell(Notice("There is no answer here that was stopped or cut off.", "information"))
        elif answer.token_ids and self.model is not None and answer.model != str(self.model.path):
            opens = f"open it with {self.key('choose_model')} to go on with it"
            self._tell(
                Notice(f"{model_title(answer.model or '')} wrote this answer: {opens}.", "information")
            )
        elif (model := self.model) is not None and not _goes_on(model, answer):
            again = f"{self.key('regenerate')} has it written anew"
            self._tell(Notice(f"{model_title(model.path)} cannot go on with it; {again}.", "information"))
        else:
            self._launch(Turn(answer.parent, None, resumes=answer.id))

    def fan_out(self, text: str | None, variants: Sequence[Variant]) -> bool:
        """Answer a new message, or without one the last, several times at once; tell whether that begins."""
        last = self.conversation.last_user()
        if self._refuse_while_busy(None):
            return False
        if text is None and last is None:
            self._tell(Notice("There is no message yet to be answered several times.", "information"))
        elif self.model is None:
            waits = "The model is still being opened; ask once it is there."
            missing = self.models.error or self.missing
            self._tell(Notice(waits if self.models.loading else missing, "warning"))
        else:
            parent = self.conversation.leaf if text is not None or last is None else last.id
            self._launch_fan(FanOut(self.conversation, parent, text, variants))
            return True
        return False

    def regenerate(self) -> None:
        """Write the last answer again beside the old one, or answer a message that has no answer."""
        leaf = self.conversation.nodes.get(self.conversation.leaf or "")
        if leaf is None or self._refuse_while_busy(None):
            return
        if leaf.role is not Role.ASSISTANT:
            self._launch(Turn(leaf.id, None))
        else:
            self._launch(Turn(leaf.parent, None, again=leaf.id))

    def show_sibling(self, step: int) -> None:
        """Show the alternative `step` places from the last answer (or message) that has any."""
        if not self._refuse_while_busy(None) and self.conversation.show_sibling(step):
            self._save()
            self._tell(PathChanged())

    def show_branch(self, node_id: str) -> None:
        """Show the branch that a message stands on; not while an answer is being written."""
        self.conversation.select(node_id)
        self._save()
        self._tell(PathChanged())

    def promote(self, node_id: str) -> None:
        """Put one of several answers into the chat; it goes on, the others are stopped and kept."""
        self.stop_all(but=node_id)
        self.conversation.select(node_id)
        self._save()
        self._tell(PathChanged(since=node_id))

    def stop(self) -> bool:
        """Stop the answer and keep what is there; tell whether there was one."""
        if self.blocked is not None:
            self.give_back_blocked()
            return True
        if not self.busy:
            return False
        self.stop_all()
        if not self._send_next:
            self._return_queue()
        return True

    def take_queued(self, text: str) -> bool:
        """Take a message out of the queue; tell whether it still was there."""
        if text not in self.queued:
            return False
        self.queued.remove(text)
        self._tell(Changed())
        return True

    def send_now(self, text: str) -> bool:
        """Stop the answer and send a queued message next; tell whether it still was queued."""
        if text not in self.queued:
            return False
        self.queued.remove(text)
        self.queued.insert(0, text)
        self._send_next = True
        self.stop()
        return True

    def set_priority(self, priority: Priority) -> None:
        """Rank this chat against the others, its running answer at once."""
        self.conversation.priority = priority
        self.settings_changed()

    def set_thinking(self, thinking: Thinking) -> None:
        """Choose how much is thought before the next answers."""
        self.conversation.thinking = thinking
        self.settings_changed()

    def rename(self, title: str) -> None:
        """Give the conversation another title."""
        self.conversation.title = title
        self._save()
        self._tell(Changed())

    def settings_changed(self) -> None:
        """Save the changed settings; the next answer uses them, a running one takes its priority."""
        self._save()
        for answer in self.running:
            if isinstance(answer.generation, Steerable):
                answer.generation.set_priority(self.conversation.priority)
        self._tell(Changed())

    def votes_changed(self) -> None:
        """Keep what answers of this chat are against those of another."""
        self._save()

    def shut_down(self) -> None:
        """Leave: an answer that is being written is kept as stopped; nothing is reported any more."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        for calls in self._columns.values():
            calls.cancel()
        for answer in self.running:
            answer.abandon(self.stats.tok_s if self.stats is not None else 0.0)
        self.running = []
        self.tools.give_up()
        self._keep_unsent()
        self._save()

    def close(self) -> None:
        """Stop everything of this tab and give its model back; what was never sent is kept as the draft."""
        self._closed = True
        self._keep_unsent()
        self.cancel_load()
        self.stop()
        if not self.running and not self._columns:
            self.models.release()

    def _keep_unsent(self) -> None:
        asking = self._asking if self._task is not None else None
        blocked = self.blocked.question if self.blocked is not None else None
        self.writing.put_in_front([asking or "", blocked or "", *self.queued])

    def _refuse_while_busy(self, turn: Turn | None) -> bool:
        if not self.busy:
            return False
        if turn is not None and turn.text is not None:
            self._tell(TextReturned(turn.text, turn.replaces))
        stop = f"An answer is being written; press {self.key('stop')} to stop it first."
        self._tell(Notice(stop, "information"))
        return True

    @property
    def missing(self) -> str:
        """What is said where no model is open."""
        return f"No model is open; press {self.key('choose_model')} to choose one."

    def _launch(self, turn: Turn) -> None:
        if self.model is None:
            self._turn_failed(turn.question, turn, self.models.error or self.missing)
        else:
            self._launch_turn(turn)

    async def _awake(self) -> ChatModel | None:
        return await self.models.awake()

    def _turn_failed(self, question: str | None, turn: Turn | None, reason: str | None) -> None:
        self._task, self.paused = None, False
        if turn is not None and turn.replaces is not None and turn.text is not None:
            self._tell(TextReturned(turn.text, turn.replaces))
        elif question is not None and self._send_next:
            self._tell(TextReturned(question))
        elif question is not None:
            self.queued.insert(0, question)
        self._go_on_with_queue(Status.STOPPED)
        if reason is not None:
            self._tell(Notice(reason, "error"))
        self._tell(Changed())

    def _all_over(self, status: Status) -> None:
        self.models.release() if self._closed else self.models.release_retired()
        self._go_on_with_queue(status)

    def _go_on_with_queue(self, status: Status) -> None:
        """Send what waits, or give it back where the answer before it was stopped or failed."""
        goes_on, self._send_next = self._send_next or status is Status.COMPLETE, False
        if goes_on and self.queued and not self._closed:
            self.send(self.queued.pop(0))
        else:
            self._return_queue()

    def _prompt_made(self, warning: str | None) -> None:
        self.models.prompt_made(warning)

    def _return_queue(self) -> None:
        if self.queued:
            text, self.queued = "\n\n".join(self.queued), []
            self._tell(TextReturned(text))

    def _model_opened(self, model: ChatModel) -> None:
        switched = self.conversation.model_path != str(model.path)
        self.conversation.model_path = str(model.path)
        self._save()
        if not self.busy:
            self.models.release_retired()
        self._tell(Changed())
        if switched and (problem := chat_too_long(self.conversation, model)):
            self._tell(Notice(problem))
        self._go_on_blocked()
        if self.queued and not self.busy:
            self.send(self.queued.pop(0))

    def _save(self) -> None:
        self._services.history.save(self.conversation)

    def _tell_reader(self, event: SessionEvent) -> None:
        if not self._closed:
            self._report(self, event)
            self._keep_unsent()


def _goes_on(model: ChatModel, answer: MessageNode) -> bool:
    """Whether a model can go on with an answer; elsewhere what has come of it must be more than thoughts."""
    return model.local is not None or (model.continues and bool(answer.text))
