"""One answer that the engine is writing, and what interrupts it: thoughts that had their budget, repetition.

Where thoughts are ended, their end is put behind what has come as if the model had written it, and the
model is asked to go on from there. Its KV is found again by the token ids.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from app.chat.answers.repetition import RepetitionWatch
from app.chat.conversation import AnswerStats, Conversation, MessageNode, Status
from app.chat.pauses import Pauses
from app.chat.prompt import NO_ROOM, answer_outcome
from app.chat.reasoning import Pieces, joined
from app.models.backends.port import Asked, ChatModel
from app.models.port import Calling, GenerationPort, Steerable
from engine import Finished, FinishReason, TextDelta


class Interruption(Enum):
    """Why what comes of an answer is not taken any more."""

    BUDGET = "its thoughts had their budget"
    REPETITION = "it repeated itself"


@dataclass(frozen=True, slots=True)
class Said:
    """What the footer of an answer says of its end."""

    settings_key: str = ""
    """Opens a chat's settings."""
    repeated: str = "it repeated itself"
    """Where it did."""
    full: str = ""
    """Behind that no room is left in the context."""
    goes_on: str = ""
    """Behind why a model broke off that runs elsewhere, or can be moved to another device."""
    moves: bool = False
    """Whether it can."""


class RunningAnswer:
    """Carries the stream of one answer's generation, and of those that it went on from, into its message."""

    def __init__(
        self, conversation: Conversation, node_id: str, asked: Asked, model: ChatModel, *, watched: bool
    ) -> None:
        """watched: whether repetition interrupts it."""
        self.node_id = node_id
        self.model = model
        self.interruption: Interruption | None = None
        self.begun = asyncio.Event()
        """Set once its prompt has been read, or it is over."""
        self._asked = asked
        self._conversation = conversation
        self._before = self.node.stats
        self._answered = asked.answered
        """Of the first generation: ids of the answer's beginning that come again."""
        self._context_length = model.context_length if model.local is not None else None
        """What it is now: a model that is closed meanwhile says nothing."""
        self._pauses = Pauses()
        self._question = tuple(asked.prompt.ids)
        """Empty where the answer's model runs elsewhere."""
        self._ending = asked.prompt.ending
        self._budget = asked.thinking.budget
        self._thought = 0
        self._again = 0
        """Ids in front of the last generation's own, which stand in the message already."""
        self._earlier: list[GenerationPort] = []
        self._watch = RepetitionWatch() if watched else None

    @property
    def node(self) -> MessageNode:
        """Its message."""
        return self._conversation.nodes[self.node_id]

    @property
    def generation(self) -> GenerationPort:
        """Its newest stream."""
        return self._asked.generation

    @property
    def begins(self) -> bool:
        """Whether nothing of it has come."""
        come = self.node.token_ids if self._question else self.node.text or self.node.reasoning
        return not come

    @property
    def can_pause(self) -> bool:
        """Whether it can be paused."""
        return isinstance(self.generation, Steerable)

    @property
    def repeats(self) -> bool:
        """Whether it is ended because it repeated itself."""
        return self.interruption is Interruption.REPETITION

    @property
    def goes_on(self) -> bool:
        """Whether it is no answer from its first token on by one generation alone."""
        return bool(self._answered or self._earlier)

    @property
    def can_end_thoughts(self) -> bool:
        """Whether it stands in thoughts that can be ended."""
        again = self._conversation.comes_again(self.node_id)
        possible = bool(self._ending) and self._asked.go_on is not None
        return possible and not again and self._conversation.is_thinking(self.node_id)

    def pause(self, paused: bool) -> None:
        """Pause it, or let it go on, where it can be paused."""
        if not isinstance(self.generation, Steerable):
            return
        (self.generation.pause if paused else self.generation.resume)()
        if self.node.token_ids:
            self._pauses.note(paused)

    def take(self, deltas: Sequence[TextDelta]) -> tuple[Pieces, Interruption | None]:
        """Add what has come up to an interruption, and drop the rest; return the new pieces by part."""
        pieces: Pieces = []
        for delta in deltas:
            if self.interruption is not None:
                break
            if self._again:
                self._again -= len(delta.token_ids)
                continue
            again = self._conversation.comes_again(self.node_id)
            pieces += self._conversation.append(self.node_id, delta.text, delta.token_ids, delta.marker)
            if again:
                self._take_again(delta)
            else:
                self.interruption = self._interrupted_by(delta)
        if not self._conversation.comes_again(self.node_id):
            self.begun.set()
        return joined(pieces), self.interruption

    def _take_again(self, delta: TextDelta) -> None:
        """What stood there before interrupts nothing, not even where it repeats itself."""
        if self._watch is not None:
            self._watch.take(delta.token_ids, delta.text)
            if not self._conversation.comes_again(self.node_id):
                self._watch.allow()

    def _interrupted_by(self, delta: TextDelta) -> Interruption | None:
        thinking = self.can_end_thoughts
        self._thought += len(delta.token_ids) if thinking else 0
        if thinking and self._budget is not None and self._thought >= self._budget:
            return Interruption.BUDGET
        if self._watch is not None and self._watch.take(delta.token_ids, delta.text):
            return Interruption.REPETITION
        return None

    def end_thoughts(self) -> Pieces:
        """End the thoughts and ask the model to go on; return the new pieces by part.

        Raises `EngineError` where it cannot be asked.
        """
        pieces = self._conversation.stream(self.node_id, self._ending)
        self.interruption = self._budget = None
        written = self.node.token_ids
        self.generation.cancel()
        self._earlier.append(self.generation)
        if self._asked.go_on is not None:
            self._asked = self._asked.go_on(written)
            self._again = len(written)
        return pieces

    def _outcome(self, finished: Finished, said: Said) -> tuple[Status, str | None]:
        if self.repeats and finished.reason is not FinishReason.ERROR:
            return Status.COMPLETE, said.repeated
        status, note = answer_outcome(
            finished, self._asked.max_tokens, self._context_length, said.settings_key
        )
        if note == NO_ROOM:
            note += said.full
        elif status is Status.ERROR and bool(self.node.text) and (said.moves or self._resumes_elsewhere):
            note = f"{note}{said.goes_on}"
        return status, note

    @property
    def _resumes_elsewhere(self) -> bool:
        return self.model.local is None and self.model.continues

    def finish(self, finished: Finished, said: Said) -> tuple[Status, Pieces]:
        """End it; return how, and the pieces that were held back."""
        self.begun.set()
        status, note = self._outcome(finished, said)
        calls = self.generation.calls if isinstance(self.generation, Calling) else ()
        cost = self.cost(finished)
        return status, self._conversation.finish(self.node_id, status, error=note, stats=cost, calls=calls)

    def fail(self, reason: str) -> None:
        """End it with a fault."""
        self.begun.set()
        self.generation.cancel()
        self._conversation.finish(self.node_id, Status.ERROR, error=reason, stats=self._before)

    def abandon(self, tok_s: float) -> None:
        """End it as stopped without waiting for the engine: the app leaves."""
        self.generation.cancel()
        cost = self._before
        if self._question:
            cost = AnswerStats(len(self.node.token_ids), tok_s, prompt_tokens=len(self._question))
        self._conversation.finish(self.node_id, Status.STOPPED, stats=cost)

    def cost(self, finished: Finished) -> AnswerStats:
        """What it cost, all of its parts together, the reader's pauses left out."""
        ends = [one.finished for one in self._earlier if one.finished is not None]
        cost, *later = [*map(AnswerStats.of, ends), self._pauses.stats(finished)]
        if not self._question:
            return self._before.followed_by(cost) if self._before is not None else cost
        for part in later:
            cost = cost.followed_by(part)
        if self._answered:
            read = cost.prompt_tokens - self._answered
            first = self._before.ttft_ms if self._before is not None else cost.ttft_ms
            cached = min(cost.cached_tokens, read)
            cost = replace(cost, prompt_tokens=read, cached_tokens=cached, ttft_ms=first)
        whole = not self.goes_on and self.interruption is None
        return cost if whole else replace(cost, tokens=len(self.node.token_ids))
