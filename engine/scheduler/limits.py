"""How many tokens a sequence of a model may have: its context length, or what KV memory holds if less.

Here a request gets its limit, when it is queued and again whenever the KV budget has moved; whoever gives
it tokens or blocks compares with that number alone. A budget that shrinks leaves every answer some room.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from engine.api.errors import RequestError
from engine.api.request import Request
from engine.cache.block_manager import BlockManager
from engine.scheduler.sequence import Sequence

ANSWER_ROOM = 1024
"""Tokens by which an answer may still grow after other models have taken of the KV's memory."""


@dataclass(slots=True)
class ScheduledModel:
    """A resident model as the scheduler sees it."""

    key: int
    blocks: BlockManager
    context_length: int

    @property
    def max_tokens(self) -> int:
        """Most tokens that any sequence may have in total."""
        return min(self.context_length, self.blocks.capacity * self.blocks.block_size)

    def least_bytes(self, sequence: Sequence) -> int:
        """KV that lets a sequence, alone, go on: to its end, or for `ANSWER_ROOM` tokens."""
        tokens = min(sequence.limit, sequence.num_target + ANSWER_ROOM)
        blocks = self.blocks.blocks_for(tokens)
        return blocks * self.blocks.block_bytes + self.blocks.windows.bytes_alone(blocks)

    def limit_of(self, request: Request) -> int:
        """Most tokens, prompt included, that `request` may have in total while the KV budget is as it is."""
        asked = len(request.prompt_ids) + (request.max_tokens or self.context_length)
        return min(asked, self.max_tokens)

    def check_fits(self, request: Request) -> None:
        """Raise `RequestError`, with numbers, for a request that could not run to its end."""
        prompt, new = len(request.prompt_ids), request.max_tokens or 1
        if prompt + new <= self.max_tokens:
            return
        wanted = f"{prompt} prompt tokens and {new} new ones need {prompt + new}"
        if prompt + new > self.context_length:
            raise RequestError(
                f"prompt_ids and max_tokens: {wanted}, but the model's context length is "
                f"{self.context_length}; shorten the conversation or lower max_tokens"
            )
        raise RequestError(
            f"prompt_ids and max_tokens: {wanted}, but the KV memory holds {self.max_tokens}; "
            "raise the KV budget, shorten the conversation or lower max_tokens"
        )


def answers_bytes(sequences: Iterable[Sequence], model: Callable[[int], ScheduledModel]) -> int:
    """The least KV budget with which every sequence, waiting or running, can go on.

    model: of a key.
    """
    return max((model(sequence.model).least_bytes(sequence) for sequence in sequences), default=0)
