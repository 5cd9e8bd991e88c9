"""What one tick computes: plain data between scheduler, runner and statistics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from engine.api.errors import InvariantError
from engine.cache.block_manager import KVMove
from engine.scheduler.cost_model import Load, chunk_pairs
from engine.scheduler.sequence import Sequence


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Tokens `[start, start + length)` of `sequence.token_ids` are read; blocks for them are there."""

    sequence: Sequence
    start: int
    length: int

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.start + self.length

    @property
    def completes(self) -> bool:
        """Whether its last token's logits are sampled: nothing known is left to read."""
        return self.end == self.sequence.num_target


@dataclass(slots=True)
class ModelBatch:
    """One pass of one model: a token of each decode row with its drafts behind it, and chunks of prompts."""

    model: int
    decode: list[Sequence] = field(default_factory=list)
    prefill: list[PrefillChunk] = field(default_factory=list)
    drafts: dict[int, list[int]] = field(default_factory=dict)
    """Draft tokens behind the tokens of decode rows, by sequence id; blocks for them are there."""
    slice_ms: float = float("inf")
    """After so long its chunks may be left half-way, where a runner can."""

    @property
    def sequences(self) -> list[Sequence]:
        """All sequences of the pass, decode rows first."""
        return self.decode + [chunk.sequence for chunk in self.prefill]

    @property
    def chosen_apart(self) -> bool:
        """Whether a token that the pass gives is chosen by more than rows of the device know."""
        read = any(chunk.completes and chunk.sequence.chosen_apart for chunk in self.prefill)
        return read or any(sequence.chosen_apart for sequence in self.decode)

    def num_draft(self, sequence: Sequence) -> int:
        """How many draft tokens stand behind a decode row."""
        return len(self.drafts.get(sequence.sequence_id, ()))

    @property
    def num_tokens(self) -> int:
        """Tokens of the pass, draft tokens included."""
        drafted = sum(map(len, self.drafts.values()))
        return len(self.decode) + drafted + sum(chunk.length for chunk in self.prefill)

    @property
    def load(self) -> Load:
        """Size of the pass, for the cost model; a draft token costs what a decode row does."""
        rows, context = len(self.decode), sum(len(sequence.token_ids) for sequence in self.decode)
        for sequence in self.decode if self.drafts else ():
            rows += self.num_draft(sequence)
            context += self.num_draft(sequence) * len(sequence.token_ids)
        return Load(
            rows,
            context,
            sum(chunk.length for chunk in self.prefill),
            sum(chunk_pairs(chunk.start, chunk.length) for chunk in self.prefill),
        )


@dataclass(slots=True)
class KVMoves:
    """Copies between a model's KV blocks and its host slots: first all offloads, then all reloads."""

    offloads: list[KVMove] = field(default_factory=list)
    reloads: list[KVMove] = field(default_factory=list)


@dataclass(slots=True)
class TickPlan:
    """One pass for every model that has work."""

    batches: list[ModelBatch] = field(default_factory=list)
    moves: dict[int, KVMoves] = field(default_factory=dict)
    """By model: what is copied before any batch runs."""
    live: Mapping[int, Sequence] = field(default_factory=dict)
    """All live sequences by id, as the scheduler has them now: who else may hold a block."""
    may_queue: bool = True
    """Whether ticks may be queued behind this one; not where the next one should have drafts."""

    def holders(self, model: int) -> list[Sequence]:
        """Live sequences of a model that hold blocks."""
        return [s for s in self.live.values() if s.model == model and s.block_table]

    @property
    def decode_only(self) -> ModelBatch | None:
        """The only batch, if it is decode rows of one model without drafts and nothing else is to do."""
        if len(self.batches) != 1 or self.moves:
            return None
        batch = self.batches[0]
        return None if batch.prefill or batch.drafts else batch

    @property
    def drafted(self) -> bool:
        """Whether draft tokens stand behind rows."""
        return any(batch.drafts for batch in self.batches)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.batches and not self.moves


def take_accepted(batch: ModelBatch, sequence: Sequence, accepted: Mapping[int, list[int]]) -> int:
    """Append the draft tokens that were accepted, whose KV is there; returns how many."""
    taken = accepted.get(sequence.sequence_id, [])
    draft = batch.drafts.get(sequence.sequence_id, [])
    if taken != draft[: len(taken)]:
        raise InvariantError(f"scheduler: what was accepted was not drafted: {taken} of {draft}")
    sequence.token_ids += taken
    sequence.drafted += len(draft)
    sequence.accepted += len(taken)
    return len(taken)


class Verifier(Protocol):
    """What verifies drafts: a model's runner."""

    @property
    def max_ahead(self) -> int:
        """Ticks of decode rows that may be queued; 0: none."""
        ...

    @property
    def verify_rows(self) -> int:
        """Most tokens of a pass of decode rows with draft tokens behind them; 0: it verifies none."""
        ...

    def can_verify(self, sequence: Sequence, /) -> bool:
        """Whether draft tokens may stand behind a sequence's decode row."""
        ...
