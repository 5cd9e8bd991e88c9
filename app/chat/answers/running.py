"""One answer that the engine is writing."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from app.chat.conversation import AnswerStats, Conversation, MessageNode, Status
from app.chat.pauses import Pauses
from app.chat.prompt import answer_outcome
from app.chat.reasoning import Pieces
from app.models.port import GenerationPort, ModelPort
from engine import Finished, TextDelta


class RunningAnswer:
    """Carries one generation's stream into its message."""

    def __init__(
        self, conversation: Conversation, node_id: str, generation: GenerationPort, model: ModelPort
    ) -> None:
        self.node_id = node_id
        self.generation = generation
        self.model = model
        self.begun = asyncio.Event()
        """Set once its prompt has been read, or it is over."""
        self._conversation = conversation
        self._before = self.node.stats
        self._context_length = model.context_length
        """What it is now: a model that is closed meanwhile says nothing."""
        self._pauses = Pauses()

    @property
    def node(self) -> MessageNode:
        """Its message."""
        return self._conversation.nodes[self.node_id]

    def pause(self, paused: bool) -> None:
        """Pause it, or let it go on."""
        (self.generation.pause if paused else self.generation.resume)()
        if self.node.token_ids:
            self._pauses.note(paused)

    def take(self, deltas: Sequence[TextDelta]) -> Pieces:
        """Add what has come; return the new pieces by part."""
        pieces = self._conversation.stream(self.node_id, deltas)
        if not self._conversation.comes_again(self.node_id):
            self.begun.set()
        return pieces

    def finish(self, finished: Finished, settings_key: str) -> tuple[Status, Pieces]:
        """End it; return how, and the pieces that were held back. `settings_key` opens a chat's settings."""
        self.begun.set()
        limit = self.generation.request.max_tokens
        status, note = answer_outcome(finished, limit, self._context_length, settings_key)
        return status, self._conversation.finish(self.node_id, status, error=note, stats=self.cost(finished))

    def fail(self, reason: str) -> None:
        """End it after a fault of the app's own."""
        self.begun.set()
        self.generation.cancel()
        self._conversation.finish(self.node_id, Status.ERROR, error=reason, stats=self._before)

    def abandon(self, tok_s: float) -> None:
        """End it as stopped without waiting for the engine: the app leaves."""
        self.generation.cancel()
        request = self.generation.request
        read = len(request.prompt_ids) - request.answered
        cost = AnswerStats(len(self.node.token_ids), tok_s, prompt_tokens=read)
        self._conversation.finish(self.node_id, Status.STOPPED, stats=cost)

    def cost(self, finished: Finished) -> AnswerStats:
        """What it cost, the reader's pauses left out; of one that went on, all of it."""
        stats, answered = self._pauses.stats(finished), self.generation.request.answered
        if not answered:
            return stats
        read = stats.prompt_tokens - answered
        return replace(
            stats,
            tokens=stats.tokens + answered,
            prompt_tokens=read,
            cached_tokens=min(stats.cached_tokens, read),
            ttft_ms=self._before.ttft_ms if self._before is not None else stats.ttft_ms,
        )
