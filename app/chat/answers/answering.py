"""The answers of one chat from the wish for one to its last token."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

from app.chat.answers.fan_out import FanOut
from app.chat.answers.running import Interruption, RunningAnswer, Said
from app.chat.conversation import Conversation, MessageNode, Status
from app.chat.events import AnswerFinished, Changed, Notice, PathChanged, SessionEvent, TextStreamed
from app.chat.prompt import beginning_of, prompt_messages, submitted
from app.chat.reasoning import AnswerSplitter, Pieces
from app.chat.shared import Services
from app.chat.tool_use.splitter import splitter_of
from app.chat.tool_use.use import ToolUse
from app.chat.turn import Turn, own_fault
from app.models.backends.port import NO_BEGINNING, Asked, ChatModel, ChatRequest, ContextFullError
from app.models.builtin import model_title
from app.models.port import GenerationPort, Steerable, Waits
from app.settings.actions import label_of
from app.tools.offered import Offered
from engine import EngineError, Event, Finished, SequenceStats, TextDelta


class Answering(ABC):
    """Asks the engine and takes its streams; one answer at a time, or several to one message.

    `tell` hears what happens; nothing once the chat is closed.
    """

    def __init__(
        self, conversation: Conversation, services: Services, tell: Callable[[SessionEvent], None]
    ) -> None:
        self.conversation = conversation
        self.stats: SequenceStats | None = None
        """The engine's newest numbers of the answer that the chat shows."""
        self.paused = False
        """Whether the reader has paused the answers."""
        self.running: list[RunningAnswer] = []
        """The answers that are being written."""
        self.fan: FanOut | None = None
        """The message that was last answered several times at once."""
        self._columns: dict[str, asyncio.Task[None]] = {}
        """By its message, an answer of several whose calls run."""
        self.tools = ToolUse(conversation, services.tools, tell, self._save)
        """The calls of its answers."""
        self._services = services
        self._tell = tell
        self._task: asyncio.Task[None] | None = None
        self._asking: str | None = None
        """The new message that `_task` asks with."""
        self._step = 0
        """How many times tools have run in the turn of the answer that is written."""
        self._closed = False
        self._told_lacks: set[tuple[str, str]] = set()
        """What the reader knows already that a model's template has no words for."""

    def key(self, action: str) -> str:
        """Return the reader's key of an action, as people write it."""
        return label_of(action, self._services.keys)

    @property
    def busy(self) -> bool:
        """Whether an answer is being prepared or written."""
        return self._task is not None or bool(self.running or self._columns)

    @property
    def sequence_id(self) -> int | None:
        """The engine's id of the running answer; of several the one that the chat shows."""
        return self._shown.generation.sequence_id if self._shown is not None else None

    @property
    def waits(self) -> str:
        """What the running answer waits for at a server, in a few words; "" where it does not."""
        generation = self._shown.generation if self._shown is not None else None
        return generation.waits if isinstance(generation, Waits) else ""

    def is_writing(self, sequence_id: int) -> bool:
        """Whether a sequence of the engine's is an answer of this chat."""
        return any(answer.generation.sequence_id == sequence_id for answer in self.running)

    @property
    def _shown(self) -> RunningAnswer | None:
        """The running answer; of several the one that the chat shows."""
        shown = next((answer for answer in self.running if answer.node_id == self.conversation.leaf), None)
        return shown or next(iter(self.running), None)

    @property
    def can_answer_now(self) -> bool:
        """Whether the running answer stands in thoughts that can be ended."""
        return self._shown is not None and self._shown.can_end_thoughts

    def answer_now(self) -> bool:
        """End the thoughts of the running answer; tell whether it has any that can be ended."""
        answer = self._shown
        if answer is None or not answer.can_end_thoughts:
            return False
        self._end_thoughts(answer)
        return True

    def observe(self, stats: SequenceStats | None) -> None:
        """Take the engine's newest numbers of this tab's answer."""
        self.stats = stats

    def pause(self) -> bool:
        """Pause the answers, or let paused ones go on; tell whether there is one."""
        if not self.busy:
            return False
        if not all(answer.can_pause for answer in self.running):
            stop = f"{self.key('stop')} stops it and keeps its text"
            self._tell(Notice(f"What an endpoint writes cannot be paused; {stop}.", "information"))
            return True
        self.paused = not self.paused
        for answer in self.running:
            answer.pause(self.paused)
        self._tell(Changed())
        return True

    def stop_all(self, but: str | None = None) -> None:
        """Stop every answer, or all but one; what is there is kept."""
        if self._task is not None:
            self._task.cancel()
        for node_id, calls in self._columns.items():
            if node_id != but:
                calls.cancel()
        for answer in self.running:
            if answer.node_id != but:
                answer.generation.cancel()

    @abstractmethod
    async def _awake(self) -> ChatModel | None:
        """Return the chat's model once it can answer; None where it stays aside."""

    @abstractmethod
    def _turn_failed(self, question: str | None, turn: Turn | None, reason: str | None) -> None:
        """Nothing was asked for: give back what the reader wrote, and say why, if that is known."""

    @abstractmethod
    def _block(self, turn: Turn, reason: str) -> None:
        """A turn is longer than the context has room for."""

    @abstractmethod
    def _all_over(self, status: Status) -> None:
        """Nothing is written any more; the last answer ended so."""

    def _launch_turn(self, turn: Turn) -> None:
        self._asking = turn.question
        self._task = asyncio.get_running_loop().create_task(self._ask(turn))
        self._tell(Changed())

    async def _ask(self, turn: Turn) -> None:
        try:
            if model := await self._awake():
                await self._run_turn(turn, model)
            else:
                self._turn_failed(turn.question, turn, None)
        except Exception as error:
            self._break_off(error, turn)

    async def _run_turn(self, turn: Turn, model: ChatModel) -> None:
        try:
            offered = await self.tools.ready()
            submit = self._submission(turn, model, offered)
            asked = await submitted(self._services.encoders, submit)
        except asyncio.CancelledError:
            self._turn_failed(turn.question, turn, None)
        except ContextFullError as error:
            self._block(turn, str(error))
        except EngineError as error:
            self._turn_failed(turn.question, turn, str(error))
        else:
            self._begin(turn, model, asked)

    def _submission(self, turn: Turn, model: ChatModel, offered: Offered) -> Callable[[], Asked]:
        conversation, path = self.conversation, str(model.path)
        before = conversation.path(turn.parent) if turn.parent is not None else []
        messages, kept = prompt_messages(conversation.system_prompt, before, turn.question, path, turn.above)
        of = turn.resumes or (turn.again if turn.text is not None else None)
        beginning = beginning_of(conversation.nodes[of], turn.text, path) if of is not None else NO_BEGINNING
        request = ChatRequest(
            *(messages, kept, conversation.sampling, conversation.max_tokens),
            chosen=conversation.chosen,
            thinking=conversation.thinking,
            beginning=beginning,
            priority=conversation.priority,
            label=conversation.title,
            owner=conversation.id,
            tools=offered.definitions,
        )
        return partial(model.chat, request)

    def _begin(self, turn: Turn, model: ChatModel, asked: Asked) -> None:
        self._task, self._step = None, turn.step
        node = self._place(turn, model, asked)
        self._follow(node, model, asked)
        self._tell(PathChanged(since=turn.resumes))
        self._prompt_made(asked.prompt.warning)
        self._tell_lack(asked.lacks, model)
        self._tell_no_tools(asked, model)

    def _tell_no_tools(self, asked: Asked, model: ChatModel) -> None:
        if self.tools.offered and not asked.knows_tools:
            self._tell_lack("takes no tools: it answers without them", model)

    def _tell_lack(self, lacks: str | None, model: ChatModel) -> None:
        """Say once a model what of the chat's choice how much to think its template has no words for."""
        if lacks is not None and (lacks, str(model.path)) not in self._told_lacks:
            self._told_lacks.add((lacks, str(model.path)))
            who = "chat template" if model.local is not None else "endpoint"
            self._tell(Notice(f"The {who} of {model_title(model.path)} {lacks}.", "information"))

    def _place(self, turn: Turn, model: ChatModel, asked: Asked) -> MessageNode:
        """Put the answer's message into the conversation."""
        conversation, answered = self.conversation, asked.answered
        splitter = self._splitter(asked)
        if turn.resumes is not None:
            node = conversation.nodes[turn.resumes]
            node.model = str(model.path)
        elif turn.again is not None:
            node = conversation.regenerate(turn.again, str(model.path), splitter)
            node.text = turn.text or ""
        else:
            conversation.leaf = turn.parent
            if turn.text is not None:
                conversation.add_user(turn.text).above = turn.above
            return conversation.begin_answer(str(model.path), splitter)
        if turn.resumes is not None or turn.text is not None:
            conversation.begin_again(node.id, splitter, answered)
        return node

    def _splitter(self, asked: Asked) -> AnswerSplitter:
        return splitter_of(asked, self.tools.offered.schemas)

    def _follow(self, node: MessageNode, model: ChatModel, asked: Asked) -> RunningAnswer:
        """Take an answer's stream from now on."""
        generation, watched = asked.generation, self._services.stop_repeats
        answer = RunningAnswer(self.conversation, node.id, asked, model, watched=watched)
        self.running.append(answer)
        self.paused &= answer.can_pause
        if isinstance(generation, Steerable):
            if self.paused:
                generation.pause()
            # It may have changed since the answer was asked for.
            generation.set_priority(self.conversation.priority)
        self._save()
        self._attach(answer)
        return answer

    def _attach(self, answer: RunningAnswer) -> None:
        take = partial(self._on_events, answer, answer.generation)
        self._services.pump.attach(answer.generation, take, partial(self._break_off, answer=answer))

    def _on_events(self, answer: RunningAnswer, generation: GenerationPort, events: Sequence[Event]) -> None:
        if answer not in self.running or generation is not answer.generation:
            return
        deltas = [event for event in events if isinstance(event, TextDelta)]
        if deltas and answer.interruption is None:
            again = self.conversation.comes_again(answer.node_id)
            pieces, interruption = answer.take(deltas)
            back = again and not self.conversation.comes_again(answer.node_id)
            self._stream(answer, pieces, back=back)
            if interruption is Interruption.BUDGET:
                self._end_thoughts(answer)
                return
            if interruption is not None:
                generation.cancel()
        if events and isinstance(events[-1], Finished):
            self._finish(answer, events[-1])

    def _stream(self, answer: RunningAnswer, pieces: Pieces, *, back: bool = False) -> None:
        """Save and show what has come; `back`: what stood there before it went on has come again whole."""
        self._services.history.append(self.conversation, answer.node_id)
        if back:
            self._tell(PathChanged(since=answer.node_id))
        elif pieces:
            self._tell(TextStreamed(answer.node_id, tuple(pieces)))

    def _end_thoughts(self, answer: RunningAnswer) -> None:
        try:
            pieces = answer.end_thoughts()
        except EngineError as error:
            self._give_up(answer, str(error))
            if not self.busy:
                self._all_over(Status.ERROR)
            return
        if self.paused:
            answer.pause(paused=True)
        self._stream(answer, pieces)
        self._attach(answer)

    def _finish(self, answer: RunningAnswer, finished: Finished) -> None:
        resume = self.key("resume")
        said = Said(
            self.key("tab_settings"),
            repeated=f"it repeated itself, {resume} goes on all the same",
            full=f"; {self.key('make_room')} makes some, {resume} then goes on",
            goes_on=f"; {resume} goes on where it stopped",
            moves=self._services.engine.can_move(answer.model),
        )
        status, pieces = answer.finish(finished, said)
        measured = self._services.measured
        if measured is not None and not answer.goes_on and answer.model.local is not None:
            measured.note(answer.node.model, finished, answer.cost(finished))
        beside = self._ends_beside_others(answer, status)
        self._leave(answer)
        if pieces:
            self._tell(TextStreamed(answer.node_id, tuple(pieces)))
        self._tell(AnswerFinished(answer.node_id))
        if not self.busy:
            self._all_over(status) if beside else self._ended(answer.node, status)

    @abstractmethod
    def _ends_beside_others(self, answer: RunningAnswer, status: Status) -> bool:
        """Tell whether an answer that has ended is one of several; what it has called runs then."""

    def _ended(self, node: MessageNode, status: Status) -> None:
        """Nothing is written any more; this answer was the last."""
        del node
        self._all_over(status)

    def _leave(self, answer: RunningAnswer) -> None:
        self.running.remove(answer)
        self.stats = None
        if not self.busy:
            self.paused = False
        if not self.busy and self.fan is not None:
            self.fan.give_back(self._services.engine)
        self._save()

    def _give_up(self, answer: RunningAnswer, reason: str) -> None:
        """End an answer here, whatever its generation still does."""
        answer.fail(reason)
        self._leave(answer)
        self._tell(AnswerFinished(answer.node_id))

    def _break_off(
        self, error: Exception, turn: Turn | None = None, answer: RunningAnswer | None = None
    ) -> None:
        """End what this tab does after a fault of the app's own; no other tab hears of it."""
        reason = own_fault(error)
        failed = [answer] if answer is not None else list(self.running)
        for one in failed:
            if one in self.running:
                self._give_up(one, reason)
        if not failed and turn is not None:
            self._turn_failed(turn.question, turn, reason)
        elif not failed:
            self._tell(Notice(reason, "error"))
        if not self.busy:
            self._all_over(Status.ERROR)

    @abstractmethod
    def _prompt_made(self, warning: str | None) -> None:
        """Hear what is unusual about the newest prompt."""

    @abstractmethod
    def _save(self) -> None:
        """Save the conversation, soon."""
