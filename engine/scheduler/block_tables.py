"""Who may run: limits of a request, the order of the queue, and what must be free to start."""

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from engine.api.errors import RequestError
from engine.api.request import Request
from engine.cache.block_manager import BlockManager, InvariantError
from engine.cache.prefix_cache import PrefixNode
from engine.scheduler.sequence import HEAD_START, Sequence


class Spill(StrEnum):
    """Whether evicted KV is copied to host memory."""

    AUTO = "auto"
    """Where bringing it back is quicker than computing it again."""
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What a user or a device may choose about scheduling."""

    max_prefill_tokens: int = 512
    """Tokens read per tick while nobody decodes."""
    min_prefill_tokens: int = 4
    """Tokens read per tick in any case, so that a prompt always makes progress."""
    tick_factor: float = 2.0
    """Longest tick while somebody decodes, in ticks without prefill."""
    tick_extra_ms: float = 0.0
    """A tick may be this much longer than one without prefill even if the factor allows less."""
    fill_passes: bool = False
    """Chunks are trimmed to the shapes of `engine.scheduler.buckets`."""
    starve_s: float = 0.5
    """A prompt that was not read for this long gets its fair share beside the focused one."""
    min_stay_s: float = 2.0
    """A sequence that has just got its blocks keeps them this long against a focused one that waits."""
    spill: Spill = Spill.AUTO
    """What becomes of KV that is evicted."""
    host_kv_bytes: int = 0
    """Host memory that evicted KV of each model may take."""
    few_tokens: int | None = None
    """Size up to which passes are quick; chunks beside decode rows are trimmed to it."""
    max_sequences: int = 64
    """Sequences that run at once, of all models."""
    max_queue: int = 1024
    """Requests that may wait."""
    head_start_s: float = 10.0
    """A higher priority queues as if it had come this much earlier; so nobody waits for ever."""
    reserve: float = 0.02
    """Part of the KV that stays free at an admission, for the growth of those that run."""
    return_reserve: float = 0.1
    """The same for a preempted sequence: larger, so that it does not come back to be preempted."""
    speculation: bool = True
    """Guess tokens ahead of the model where that is expected to pay."""
    debug: bool = False
    """Check every invariant in every tick."""


@dataclass(slots=True)
class ModelSlot:
    """A resident model as the scheduler sees it."""

    key: int
    blocks: BlockManager
    context_length: int

    @property
    def max_tokens(self) -> int:
        """Most tokens that any sequence may have in total."""
        return min(self.context_length, self.blocks.capacity * self.blocks.block_size)

    def limit_for(self, request: Request) -> int:
        """Most tokens, prompt included, that `request` may have in total."""
        if request.max_tokens is None:
            return self.max_tokens
        return min(self.max_tokens, len(request.prompt_ids) + request.max_tokens)

    def check_fits(self, request: Request) -> None:
        """Raise `RequestError`, with numbers, if the request could never run to its end."""
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


class WaitingQueue:
    """Waiting sequences by rank: in order of arrival, a priority counting as an earlier one.

    A preempted sequence keeps its rank and so stands before all that came after it.
    """

    def __init__(self, head_start_s: float) -> None:
        self._head_start_s = head_start_s
        self._waiting: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._waiting)

    def head(self) -> Sequence | None:
        """The first in rank."""
        return self._waiting[0] if self._waiting else None

    def rank(self, sequence: Sequence) -> tuple[float, int]:
        """Place of a new sequence in the total order of admission."""
        early = HEAD_START[sequence.priority] * self._head_start_s
        return (sequence.arrival - early, sequence.sequence_id)

    def add(self, sequence: Sequence) -> None:
        """Queue by rank."""
        insort(self._waiting, sequence, key=lambda item: item.rank)

    def remove(self, sequence: Sequence) -> None:
        """Take out of the queue."""
        self._waiting.remove(sequence)

    def position(self, sequence: Sequence) -> int:
        """1 for the next one; 0 if it does not wait."""
        # `list.index` would put the whole sequence, tokens and all, into the error of a missing one.
        return next((place for place, other in enumerate(self._waiting, 1) if other is sequence), 0)


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """What of a sequence's tokens has its KV in blocks already."""

    blocks: list[int]
    tokens: int
    """May end inside the last block: that one is copied before it is written."""
    missing: int
    """Blocks to allocate for the other known tokens, a copied one included."""
    hosted: list[PrefixNode]
    """The full blocks that follow and whose KV is in host memory; to be brought back into new ones."""


def find_prefix(sequence: Sequence, parent: Sequence | None, blocks: BlockManager) -> PrefixHit:
    """The longest prefix of `sequence` in the index or in its living parent's table."""
    table, hosted = blocks.match(sequence.token_ids)
    tokens = len(table) * blocks.block_size
    if parent is not None and parent.model == sequence.model:
        most = min(parent.num_computed, sequence.num_target - 1)
        common = _common_length(sequence.token_ids, parent.token_ids, most)
        if common > tokens + len(hosted) * blocks.block_size:
            table, tokens, hosted = parent.block_table[: blocks.blocks_for(common)], common, []
    missing = blocks.blocks_for(sequence.num_target) - tokens // blocks.block_size
    return PrefixHit(table, tokens, missing, hosted)


def take_blocks(sequence: Sequence, hit: PrefixHit, blocks: BlockManager) -> tuple[int, int] | None:
    """Give `sequence` a table for all known tokens; returns the copy to make before it is written.

    Needs `blocks.fits(hit.missing, hit.blocks)`; raises `InvariantError` otherwise.
    """
    table = blocks.fork(hit.blocks)
    partial = hit.tokens % blocks.block_size > 0
    copy = blocks.copy_on_write(table, len(table) - 1) if partial else None
    grown = blocks.allocate(hit.missing - partial, table[-1] if table else None)
    if grown is None:
        raise InvariantError(
            f"scheduler: no blocks for sequence {sequence.sequence_id}, which was said to fit"
        )
    sequence.block_table = table + grown
    sequence.num_computed = hit.tokens
    sequence.restores = hit.hosted
    return copy


def _common_length(a: list[int], b: list[int], most: int) -> int:
    if a[:most] == b[:most]:
        return most
    return next(i for i in range(most) if a[i] != b[i])


def check_books(
    models: Mapping[int, ModelSlot], running: Iterable[Sequence], waiting: Iterable[Sequence]
) -> None:
    """The costly invariants: every block's count, every sequence's tokens; raises `InvariantError`."""
    holders = list(running)
    for slot in models.values():
        slot.blocks.check([s.block_table for s in holders if s.model == slot.key])
    for sequence in waiting:
        if sequence.block_table or sequence.num_computed:
            raise InvariantError(f"scheduler: sequence {sequence.sequence_id} waits but holds blocks")
    for sequence in holders:
        capacity = len(sequence.block_table) * models[sequence.model].blocks.block_size
        if not 0 <= sequence.num_computed <= capacity or sequence.remaining < 1:
            raise InvariantError(f"scheduler: sequence {sequence.sequence_id} has lost count of its tokens")
