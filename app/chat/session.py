"""One tab without its widgets: a conversation, its model and the answer that is being written.

A session runs on the user interface's thread. It tells what happens as `SessionEvent`s; whoever
shows the tab turns them into widgets, and a tab that nobody looks at costs no painting.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from app.chat.conversation import AnswerStats, Conversation, Role, Status
from app.chat.draft import Writing
from app.chat.events import (
    NOT_WRITING,
    AnswerFinished,
    Changed,
    Notice,
    PathChanged,
    SessionEvent,
    TabState,
    TextReturned,
    TextStreamed,
)
from app.chat.model_slot import ModelSlot
from app.chat.pauses import Pauses
from app.chat.prompt import (
    answer_outcome,
    cancel_when_submitted,
    chat_too_long,
    prompt_messages,
    submit_prompt,
)
from app.chat.reasoning import splitter_for
from app.chat.shared import Services
from app.chat.turn import Turn, own_fault
from app.models.port import GenerationPort, ModelPort
from app.settings.actions import label_of
from engine import EngineError, Event, Finished, Priority, Prompt, SequenceStats, TextDelta


class ChatSession:
    """One tab. `report` receives every event, in order."""

    def __init__(
        self,
        conversation: Conversation,
        services: Services,
        report: Callable[["ChatSession", SessionEvent], None],
    ) -> None:
        self.conversation = conversation
        self._services = services
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
        self.stats: SequenceStats | None = None
        self.paused = False
        """Whether the reader has paused the answer."""
        self._report = report
        self._generation: GenerationPort | None = None
        self._task: asyncio.Task[None] | None = None
        self._asking: Turn | None = None
        """What `_task` asks for."""
        self._context_length = 0
        """Most tokens that the model of the running answer reads."""
        self._answer: str | None = None
        self._pauses = Pauses()
        self._closed = False

    @property
    def model(self) -> ModelPort | None:
        """The model that answers, None before one is open."""
        return self.models.current

    def key(self, action: str) -> str:
        """Return the reader's key of an action, as people write it."""
        return label_of(action, self._services.keys)

    @property
    def busy(self) -> bool:
        """Whether an answer is being prepared or written."""
        return self._task is not None or self._generation is not None

    @property
    def sequence_id(self) -> int | None:
        """The engine's id of the running answer."""
        return self._generation.sequence_id if self._generation is not None else None

    @property
    def state(self) -> TabState:
        """What the tab is doing now."""
        if self.paused:
            return TabState.PAUSED
        if self._generation is not None:
            if self.stats is not None and self.stats.state in NOT_WRITING:
                return NOT_WRITING[self.stats.state]
            node = self.conversation.nodes[self._answer or ""]
            return TabState.GENERATING if node.token_ids else TabState.READING
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
        if self.busy or (self.model is None and self.models.loading):
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
        if not self.busy:
            return False
        if self._generation is not None:
            self._generation.cancel()
        elif self._task is not None:
            self._task.cancel()
        self._return_queue()
        return True

    def pause(self) -> bool:
        """Pause the answer, or let a paused one go on; tell whether there is one."""
        if not self.busy:
            return False
        self.paused = not self.paused
        if self._generation is not None:
            (self._generation.pause if self.paused else self._generation.resume)()
            if self.conversation.nodes[self._answer or ""].token_ids:
                self._pauses.note(self.paused)
        self._tell(Changed())
        return True

    def set_priority(self, priority: Priority) -> None:
        """Rank this chat against the others, its running answer at once."""
        self.conversation.priority = priority
        self.settings_changed()

    def rename(self, title: str) -> None:
        """Give the conversation another title."""
        self.conversation.title = title
        self._save()
        self._tell(Changed())

    def settings_changed(self) -> None:
        """Save the changed settings; the next answer uses them, a running one takes its priority."""
        self._save()
        if self._generation is not None:
            self._generation.set_priority(self.conversation.priority)
        self._tell(Changed())

    def shut_down(self) -> None:
        """Leave: an answer that is being written is kept as stopped; nothing is reported any more."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        if self._generation is not None and self._answer is not None:
            self._generation.cancel()
            speed = self.stats.tok_s if self.stats is not None else 0.0
            written = len(self.conversation.nodes[self._answer].token_ids)
            cost = AnswerStats(written, speed, prompt_tokens=len(self._generation.request.prompt_ids))
            self.conversation.finish(self._answer, Status.STOPPED, stats=cost)
            self._generation = self._answer = None
        self._keep_unsent()
        self._save()

    def close(self) -> None:
        """Stop everything of this tab and give its model back; what was never sent is kept as the draft."""
        self._closed = True
        self._keep_unsent()
        self.cancel_load()
        self.stop()
        if self._generation is None:
            self.models.release()

    def _keep_unsent(self) -> None:
        asking = self._asking.text if self._task is not None and self._asking is not None else None
        self.writing.put_in_front([asking or "", *self.queued])

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
        self._task = asyncio.get_running_loop().create_task(self._ask(turn))
        self._tell(Changed())

    async def _ask(self, turn: Turn) -> None:
        try:
            if model := await self.models.awake():
                await self._run_turn(turn, model)
            else:
                self._turn_failed(turn, None)
        except Exception as error:
            self._break_off(error, turn)

    async def _run_turn(self, turn: Turn, model: ModelPort) -> None:
        conversation = self.conversation
        before = conversation.path(turn.parent) if turn.parent is not None else []
        messages, kept = prompt_messages(conversation.system_prompt, before, turn.text, str(model.path))
        submit = partial(
            submit_prompt,
            *(model, messages, kept, conversation.sampling, conversation.max_tokens),
            chosen=conversation.chosen,
            priority=conversation.priority,
            label=conversation.title,
            owner=conversation.id,
        )
        running = asyncio.get_running_loop().run_in_executor(self._services.encoders, submit)
        try:
            generation, prompt = await asyncio.shield(running)
        except asyncio.CancelledError:
            running.add_done_callback(cancel_when_submitted)
            self._turn_failed(turn, None)
        except EngineError as error:
            self._turn_failed(turn, str(error))
        else:
            self._begin(turn, model, generation, prompt)

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

    def _begin(self, turn: Turn, model: ModelPort, generation: GenerationPort, prompt: Prompt) -> None:
        self._task, self._generation = None, generation
        self._context_length = model.context_length
        conversation = self.conversation
        if self.paused:
            generation.pause()
        if generation.request.priority is not conversation.priority:
            generation.set_priority(conversation.priority)
        splitter = splitter_for(prompt.answer_format, prompt.starts_in_reasoning)
        if turn.again is not None:
            answer = conversation.regenerate(turn.again, str(model.path), splitter)
        else:
            conversation.leaf = turn.parent
            if turn.text is not None:
                conversation.add_user(turn.text)
            answer = conversation.begin_answer(str(model.path), splitter)
        self._answer, self._pauses = answer.id, Pauses()
        self._save()
        take = partial(self._on_events, generation)
        self._services.pump.attach(generation, take, self._break_off)
        self._tell(PathChanged())
        self.models.prompt_made(prompt.warning)

    def _on_events(self, generation: GenerationPort, events: Sequence[Event]) -> None:
        answer = self._answer
        if answer is None or generation is not self._generation:
            return
        deltas = [event for event in events if isinstance(event, TextDelta)]
        if deltas:
            pieces = self.conversation.stream(answer, deltas)
            self._services.history.append(self.conversation, answer)
            if pieces:
                self._tell(TextStreamed(answer, tuple(pieces)))
        if events and isinstance(events[-1], Finished):
            self._finish(answer, events[-1])

    def _finish(self, answer: str, finished: Finished) -> None:
        limit = self._generation.request.max_tokens if self._generation is not None else None
        status, note = answer_outcome(finished, limit, self._context_length, self.key("tab_settings"))
        stats = self._pauses.stats(finished)
        if (measured := self._services.measured) is not None:
            measured.note(self.conversation.nodes[answer].model, finished, stats)
        self._generation = self._answer = self.stats = None
        self.paused = False
        pieces = self.conversation.finish(answer, status, error=note, stats=stats)
        self._save()
        if pieces:
            self._tell(TextStreamed(answer, tuple(pieces)))
        self._tell(AnswerFinished(answer))
        self._give_back_models()
        if status is Status.COMPLETE and self.queued and not self._closed:
            self.send(self.queued.pop(0))
        else:
            self._return_queue()

    def _break_off(self, error: Exception, turn: Turn | None = None) -> None:
        """End what this tab does after a fault of the app's own; no other tab hears of it."""
        reason, generation, answer = own_fault(error), self._generation, self._answer
        self._generation = self._answer = self.stats = None
        if generation is not None:
            generation.cancel()
        if answer is not None:
            self._task, self.paused = None, False
            self.conversation.finish(answer, Status.ERROR, error=reason)
            self._save()
            self._tell(AnswerFinished(answer))
            self._return_queue()
        elif turn is not None:
            self._turn_failed(turn, reason)
        else:
            self._tell(Notice(reason, "error"))
        self._give_back_models()

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
        if self.queued and not self.busy:
            self.send(self.queued.pop(0))

    def _save(self) -> None:
        self._services.history.save(self.conversation)

    def _tell(self, event: SessionEvent) -> None:
        if not self._closed:
            self._report(self, event)
            self._keep_unsent()
