"""The part of a tab that writes answers: from one that was asked for to its end, whatever that is."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial

from app.chat.answering.running import Interruption, RunningAnswer
from app.chat.conversation import AnswerStats, Conversation, MessageNode, Status
from app.chat.events import AnswerFinished, AnswerResumed, Notice, PathChanged, SessionEvent, TextStreamed
from app.chat.prompt import NO_ROOM, Asked, answer_outcome
from app.chat.reasoning import Pieces, splitter_for
from app.chat.shared import Services
from app.chat.turn import Turn, own_fault
from app.models.builtin import model_title
from app.models.port import GenerationPort, ModelPort
from app.settings.actions import label_of
from engine import EngineError, Event, Finished, FinishReason, SequenceStats, TextDelta


class AnswerWriter(ABC):
    """Takes the stream of the running answer into the conversation."""

    def __init__(self, conversation: Conversation, services: Services) -> None:
        self.conversation = conversation
        self._services = services
        self.stats: SequenceStats | None = None
        self.paused = False
        """Whether the reader has paused the answer."""
        self._running: RunningAnswer | None = None
        self._model: ModelPort | None = None
        """Who writes the running answer."""
        self._told_lack: tuple[str, str] | None = None
        """What the reader knows already that a model's template has no words for."""

    def key(self, action: str) -> str:
        """Return the reader's key of an action, as people write it."""
        return label_of(action, self._services.keys)

    @property
    def sequence_id(self) -> int | None:
        """The engine's id of the running answer."""
        return self._running.generation.sequence_id if self._running is not None else None

    @property
    def has_begun(self) -> bool:
        """Whether a token of the running answer has come."""
        return self._running is not None and bool(self._running.token_ids)

    @property
    def can_answer_now(self) -> bool:
        """Whether the running answer stands in thoughts that can be ended."""
        return self._running is not None and self._running.can_end_thoughts

    def answer_now(self) -> bool:
        """End the thoughts of the running answer; tell whether it has any that can be ended."""
        running = self._running
        if running is None or not running.can_end_thoughts:
            return False
        self._end_thoughts(running)
        return True

    @abstractmethod
    def _tell(self, event: SessionEvent) -> None:
        """Report an event."""

    @abstractmethod
    def _save(self) -> None:
        """Save the conversation."""

    @abstractmethod
    def _answer_ended(self, status: Status | None) -> None:
        """Go on after an answer has ended; None: with a fault of the app's own."""

    @abstractmethod
    def _turn_failed(self, turn: Turn, reason: str | None) -> None:
        """Give back what could not be asked."""

    def _begin(self, turn: Turn, model: ModelPort, asked: Asked) -> None:
        conversation, generation = self.conversation, asked.generation
        if self.paused:
            generation.pause()
        if generation.request.priority is not conversation.priority:
            generation.set_priority(conversation.priority)
        resumed = conversation.nodes[turn.resumes].stats if turn.resumes is not None else None
        answer = self._answer_of(turn, str(model.path), asked)
        watched = self._services.stop_repeats
        self._running = RunningAnswer(conversation, answer.id, asked, watched=watched, cost=resumed)
        self._model = model
        self._save()
        self._attach(generation)
        self._tell(PathChanged() if turn.resumes is None else AnswerResumed(answer.id))
        self._tell_lack(asked.lacks, model)

    def _answer_of(self, turn: Turn, model: str, asked: Asked) -> MessageNode:
        conversation, prompt = self.conversation, asked.prompt
        splitter = splitter_for(prompt.answer_format, prompt.starts_in_reasoning)
        if turn.resumes is not None:
            conversation.resume(turn.resumes, splitter, asked.before)
            return conversation.nodes[turn.resumes]
        if turn.again is not None:
            return conversation.regenerate(turn.again, model, splitter)
        conversation.leaf = turn.parent
        if turn.text is not None:
            conversation.add_user(turn.text).above = turn.above
        return conversation.begin_answer(model, splitter)

    def _attach(self, generation: GenerationPort) -> None:
        self._services.pump.attach(generation, partial(self._on_events, generation), self._break_off)

    def _tell_lack(self, lacks: str | None, model: ModelPort) -> None:
        """Say once a model what of the chat's choice how much to think its template has no words for."""
        if lacks is not None and self._told_lack != (lacks, str(model.path)):
            self._told_lack = (lacks, str(model.path))
            self._tell(Notice(f"The chat template of {model_title(model.path)} {lacks}.", "information"))

    def _on_events(self, generation: GenerationPort, events: Sequence[Event]) -> None:
        running = self._running
        if running is None or generation is not running.generation:
            return
        if running.interruption is None:
            deltas = [event for event in events if isinstance(event, TextDelta)]
            pieces, interruption = running.take(deltas)
            if deltas:
                self._stream(running, pieces)
            if interruption is Interruption.BUDGET:
                self._end_thoughts(running)
                return
            if interruption is not None:
                generation.cancel()
        if events and isinstance(events[-1], Finished):
            self._finish(running, events[-1])

    def _stream(self, running: RunningAnswer, pieces: Pieces) -> None:
        self._services.history.append(self.conversation, running.node_id)
        if pieces:
            self._tell(TextStreamed(running.node_id, tuple(pieces)))

    def _end_thoughts(self, running: RunningAnswer) -> None:
        assert self._model is not None
        try:
            pieces = running.end_thoughts(self._model)
        except EngineError as error:
            self._stop_with(Status.ERROR, str(error))
            return
        if self.paused:
            running.generation.pause()
        self._stream(running, pieces)
        self._attach(running.generation)

    def _finish(self, running: RunningAnswer, finished: Finished) -> None:
        length = self._model.context_length if self._model is not None else 0
        limit = running.request.max_tokens
        status, note = answer_outcome(finished, limit, length, self.key("tab_settings"))
        if running.repeats and finished.reason is not FinishReason.ERROR:
            status, note = Status.COMPLETE, f"it repeated itself, {self.key('resume')} goes on all the same"
        elif note == NO_ROOM:
            note += f"; {self.key('make_room')} makes some, {self.key('resume')} then goes on"
        if (measured := self._services.measured) is not None:
            model = self.conversation.nodes[running.node_id].model
            measured.note(model, finished, running.pauses.stats(finished))
        self._end(status, note, running.cost(finished))

    def _end(self, status: Status, note: str | None, cost: AnswerStats | None) -> None:
        assert self._running is not None
        answer = self._running.node_id
        self._running = self.stats = None
        self.paused = False
        pieces = self.conversation.finish(answer, status, error=note, stats=cost)
        self._save()
        if pieces:
            self._tell(TextStreamed(answer, tuple(pieces)))
        self._tell(AnswerFinished(answer))
        self._answer_ended(status)

    def _break_off(self, error: Exception, turn: Turn | None = None) -> None:
        """End what this tab does after a fault of the app's own; no other tab hears of it."""
        reason, running = own_fault(error), self._running
        if running is not None:
            running.generation.cancel()
            self._stop_with(Status.ERROR, reason)
        elif turn is not None:
            self._turn_failed(turn, reason)
        else:
            self._tell(Notice(reason, "error"))
            self._answer_ended(None)

    def _stop_with(self, status: Status, reason: str | None) -> None:
        """End the running answer here, whatever its generation still does."""
        assert self._running is not None
        answer = self._running.node_id
        self._running = self.stats = None
        self.paused = False
        self.conversation.finish(answer, status, error=reason)
        self._save()
        self._tell(AnswerFinished(answer))
        self._answer_ended(None)
