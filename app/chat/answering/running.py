"""An answer that is being written, and what interrupts it: thoughts that had their budget, and repetition.

Where thoughts are ended, their end is put behind what has come as if the model had written it, and the
model is asked to go on from there. Its KV is found again by the token ids.
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum

from app.chat.answering.repetition import RepetitionWatch
from app.chat.conversation import AnswerStats, Conversation, MessageNode
from app.chat.pauses import Pauses
from app.chat.prompt import Asked
from app.chat.reasoning import Pieces, joined
from app.models.port import GenerationPort, ModelPort
from engine import Finished, Request, TextDelta


class Interruption(Enum):
    """Why what comes of an answer is not taken any more."""

    BUDGET = "its thoughts had their budget"
    REPETITION = "it repeated itself"


class RunningAnswer:
    """One answer with its generation, and those that it went on from."""

    def __init__(
        self,
        conversation: Conversation,
        node_id: str,
        asked: Asked,
        *,
        watched: bool,
        cost: AnswerStats | None = None,
    ) -> None:
        """watched: whether repetition interrupts it; cost: what it cost so far, where it goes on."""
        self.node_id = node_id
        self.generation = asked.generation
        self.interruption: Interruption | None = None
        self.pauses = Pauses()
        self._conversation = conversation
        self._question = tuple(asked.prompt.ids)
        self._ending = asked.prompt.ending
        self._budget = asked.thinking.budget
        self._thought = 0
        self._cost = cost
        self._earlier: list[GenerationPort] = []
        self._watch = RepetitionWatch() if watched else None
        if self._watch is not None and asked.before:
            for delta in asked.before:
                self._watch.take(delta.token_ids, delta.text)
            self._watch.allow()

    @property
    def request(self) -> Request:
        """What was asked for last."""
        return self.generation.request

    @property
    def token_ids(self) -> Sequence[int]:
        """What has come."""
        return self._conversation.nodes[self.node_id].token_ids

    @property
    def repeats(self) -> bool:
        """Whether it is ended because it repeated itself."""
        return self.interruption is Interruption.REPETITION

    @property
    def question_tokens(self) -> int:
        """Tokens in front of the answer."""
        return len(self._question)

    @property
    def can_end_thoughts(self) -> bool:
        """Whether it stands in thoughts that can be ended."""
        return bool(self._ending) and self._conversation.is_thinking(self.node_id)

    def take(self, deltas: Sequence[TextDelta]) -> tuple[Pieces, Interruption | None]:
        """Add what has come up to an interruption, and drop the rest; return the new pieces by part."""
        pieces: Pieces = []
        for delta in deltas:
            if self.interruption is not None:
                break
            pieces += self._conversation.append(self.node_id, delta.text, delta.token_ids, delta.marker)
            self.interruption = self._interrupted_by(delta)
        return joined(pieces), self.interruption

    def _interrupted_by(self, delta: TextDelta) -> Interruption | None:
        thinking = self.can_end_thoughts
        self._thought += len(delta.token_ids) if thinking else 0
        if thinking and self._budget is not None and self._thought >= self._budget:
            return Interruption.BUDGET
        if self._watch is not None and self._watch.take(delta.token_ids, delta.text):
            return Interruption.REPETITION
        return None

    def end_thoughts(self, model: ModelPort) -> Pieces:
        """End the thoughts and ask the model to go on; return the new pieces by part.

        Raises `EngineError` where it cannot be asked.
        """
        request = self.request
        pieces = self._conversation.stream(self.node_id, self._ending)
        self.interruption = self._budget = None
        ids = (*self._question, *self.token_ids)
        written = len(ids) - len(request.prompt_ids)
        most = None if request.max_tokens is None else max(1, request.max_tokens - written)
        self.generation.cancel()
        self._earlier.append(self.generation)
        self.generation = model.submit(replace(request, prompt_ids=ids, max_tokens=most))
        return pieces

    def ended(self) -> MessageNode:
        """End it in the conversation; return its message."""
        self._conversation.finish(self.node_id)
        return self._conversation.nodes[self.node_id]

    def cost(self, finished: Finished) -> AnswerStats:
        """Return what the answer cost, all of its parts together."""
        ends = [one.finished for one in self._earlier if one.finished is not None]
        parts = [*map(AnswerStats.of, ends), self.pauses.stats(finished)]
        cost = self._cost or parts.pop(0)
        for part in parts:
            cost = cost.followed_by(part)
        alone = self._cost is None and not self._earlier and self.interruption is None
        return cost if alone else replace(cost, tokens=len(self.token_ids))
