"""One tab without its widgets: a conversation, its model and the answer that is being written.

A session runs on the user interface's thread. It tells what happens as `SessionEvent`s; whoever
shows the tab turns them into widgets, and a tab that nobody looks at costs no painting.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from app.chat.context.blocked import RoomMaker
from app.chat.conversation import AnswerStats, Conversation, MessageNode, Role, Status
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
from app.chat.prompt import (
    ContextFullError,
    cancel_when_submitted,
    chat_too_long,
    prompt_messages,
    submit_prompt,
)
from app.chat.shared import Services
from app.chat.turn import Turn
from app.models.port import ModelPort
from engine import EngineError, Priority, SequenceStats, Thinking


class ChatSession(RoomMaker):
    """One tab. `report` receives every event, in order."""

    def __init__(
        self,
        conversation: Conversation,
        services: Services,
        report: Callable[["ChatSession", SessionEvent], None],
    ) -> None:
        super().__init__(conversation, services)
        self.models = ModelSlot(
            services.engine,
            self._model_opened,
            self._return_queue,
            self._tell,
            choose_key=self.key("choose_model"),
        )
        self.writing = Writing(conversation, self._save)
        self.unread = False
        self.read_only = False
        """Whether another window writes this chat."""
        self.queued: list[str] = []
        self._report = report

    @property
    def model(self) -> ModelPort | None:
        """The model that answers, None before one is open."""
        return self.models.current

    @property
    def state(self) -> TabState:
        """What the tab is doing now."""
        if self.paused:
            return TabState.PAUSED
        if self._running is not None:
            if self.stats is not None and self.stats.state in NOT_WRITING:
                return NOT_WRITING[self.stats.state]
            return TabState.GENERATING if self.has_begun else TabState.READING
        if self._task is not None:
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

    def observe(self, stats: SequenceStats | None) -> None:
        """Take the engine's newest numbers of this tab's answer."""
        self.stats = stats

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
        """Ask with a message written differently; the old branch stays in the tree."""
        turn = Turn(self.conversation.nodes[node_id].parent, text, replaces=node_id)
        if not self._refuse_while_busy(turn):
            self._launch(turn)

    def regenerate(self) -> None:
        """Write the last answer again beside the old one, or answer a message that has no answer."""
        leaf = self.conversation.nodes.get(self.conversation.leaf or "")
        if leaf is None or self._refuse_while_busy(None):
            return
        if leaf.role is Role.USER:
            self._launch(Turn(leaf.id, None))
        else:
            self._launch(Turn(leaf.parent, None, again=leaf.id))

    def resume(self) -> None:
        """Let the last answer go on where it was stopped or cut off."""
        leaf = self.conversation.nodes.get(self.conversation.leaf or "")
        if leaf is None or self._refuse_while_busy(None):
            return
        if reason := self._not_resumable(leaf):
            self._tell(Notice(reason, "information"))
        else:
            self._launch(Turn(leaf.parent, None, resumes=leaf.id))

    def _not_resumable(self, leaf: MessageNode) -> str | None:
        again = f"{self.key('regenerate')} writes it again."
        if leaf.role is not Role.ASSISTANT:
            return f"There is no answer to go on with; {again}"
        if leaf.status is Status.COMPLETE and leaf.error is None:
            return f"The answer has come to its end; {again}"
        if not leaf.token_ids or self.model is None or leaf.model != str(self.model.path):
            return f"Only the model that began an answer can go on with it; {again}"
        return None

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

    def stop(self) -> bool:
        """Stop the answer and keep what is there; tell whether there was one."""
        if self.blocked is not None:
            self.give_back_blocked()
            return True
        if not self.busy:
            return False
        if self._running is not None:
            self._running.generation.cancel()
        elif self._task is not None:
            self._task.cancel()
        self._return_queue()
        return True

    def pause(self) -> bool:
        """Pause the answer, or let a paused one go on; tell whether there is one."""
        if not self.busy:
            return False
        self.paused = not self.paused
        if self._running is not None:
            generation = self._running.generation
            (generation.pause if self.paused else generation.resume)()
            if self.has_begun:
                self._running.pauses.note(self.paused)
        self._tell(Changed())
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
        if self._running is not None:
            self._running.generation.set_priority(self.conversation.priority)
        self._tell(Changed())

    def shut_down(self) -> None:
        """Leave: an answer that is being written is kept as stopped; nothing is reported any more."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        if self._running is not None:
            self._running.generation.cancel()
            speed = self.stats.tok_s if self.stats is not None else 0.0
            cost = AnswerStats(
                len(self._running.token_ids), speed, prompt_tokens=self._running.question_tokens
            )
            self.conversation.finish(self._running.node_id, Status.STOPPED, stats=cost)
            self._running = None
        self._keep_unsent()
        self._save()

    def close(self) -> None:
        """Stop everything of this tab and give its model back; what was never sent is kept as the draft."""
        self._closed = True
        self._keep_unsent()
        self.cancel_load()
        self.stop()
        if self._running is None:
            self.models.release()

    def _keep_unsent(self) -> None:
        turns = [self._asking if self._task is not None else None, self.blocked]
        asking = [turn.text or "" for turn in turns if turn is not None]
        self.writing.put_in_front([*asking, *self.queued])

    def _refuse_while_busy(self, turn: Turn | None) -> bool:
        if not self.busy:
            return False
        if turn is not None and turn.text is not None:
            self._tell(TextReturned(turn.text, turn.replaces))
        stop = f"An answer is being written; press {self.key('stop')} to stop it first."
        self._tell(Notice(stop, "information"))
        return True

    def _launch(self, turn: Turn) -> None:
        if self.model is None:
            missing = f"No model is open; press {self.key('choose_model')} to choose one."
            self._turn_failed(turn, self.models.error or missing)
            return
        self._asking = turn
        self._task = asyncio.get_running_loop().create_task(self._ask(turn, self.model))
        self._tell(Changed())

    async def _ask(self, turn: Turn, model: ModelPort) -> None:
        try:
            await self._run_turn(turn, model)
        except Exception as error:
            self._break_off(error, turn)

    async def _run_turn(self, turn: Turn, model: ModelPort) -> None:
        conversation = self.conversation
        before = conversation.path(turn.parent) if turn.parent is not None else []
        messages, kept = prompt_messages(
            *(conversation.system_prompt, before, turn.text, str(model.path), turn.above)
        )
        submit = partial(
            submit_prompt,
            *(model, messages, kept, conversation.sampling, conversation.max_tokens),
            chosen=conversation.chosen,
            priority=conversation.priority,
            label=conversation.title,
            thinking=conversation.thinking,
            written=conversation.nodes[turn.resumes].token_ids if turn.resumes is not None else (),
        )
        running = asyncio.get_running_loop().run_in_executor(self._services.encoders, submit)
        try:
            asked = await asyncio.shield(running)
        except asyncio.CancelledError:
            running.add_done_callback(cancel_when_submitted)
            self._turn_failed(turn, None)
        except ContextFullError as error:
            self._block(turn, str(error))
        except EngineError as error:
            self._turn_failed(turn, str(error))
        else:
            self._task = None
            self._begin(turn, model, asked)
            self.models.prompt_made(asked.prompt.warning)

    def _turn_failed(self, turn: Turn, reason: str | None) -> None:
        self._task, self.paused = None, False
        if turn.text is not None and turn.replaces is None:
            self.queued.insert(0, turn.text)
        elif turn.text is not None:
            self._tell(TextReturned(turn.text, turn.replaces))
        self._return_queue()
        if reason is not None:
            self._tell(Notice(reason, "error"))
        self._tell(Changed())

    def _answer_ended(self, status: Status | None) -> None:
        self._give_back_models()
        if status is Status.COMPLETE and self.queued and not self._closed:
            self.send(self.queued.pop(0))
        else:
            self._return_queue()

    def _give_back_models(self) -> None:
        self.models.release() if self._closed else self.models.release_retired()

    def _return_queue(self) -> None:
        if self.queued:
            text, self.queued = "\n\n".join(self.queued), []
            self._tell(TextReturned(text))

    def _model_opened(self, model: ModelPort) -> None:
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

    def _tell(self, event: SessionEvent) -> None:
        if not self._closed:
            self._report(self, event)
            self._keep_unsent()
