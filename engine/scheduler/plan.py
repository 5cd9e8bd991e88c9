"""What one tick computes: plain data between scheduler, runner and statistics."""

from dataclasses import dataclass, field

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
    """One pass of one model: a token of each decode row with guesses behind it, and chunks of prompts."""

    model: int
    decode: list[Sequence] = field(default_factory=list)
    prefill: list[PrefillChunk] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    """(source block, destination block), to be copied in order before anything is written."""
    drafts: dict[int, list[int]] = field(default_factory=dict)
    """Guesses behind the tokens of decode rows, by sequence id; blocks for them are there."""

    @property
    def sequences(self) -> list[Sequence]:
        """All sequences of the pass, decode rows first."""
        return self.decode + [chunk.sequence for chunk in self.prefill]

    def guesses(self, sequence: Sequence) -> int:
        """How many guesses stand behind a decode row."""
        return len(self.drafts.get(sequence.sequence_id, ()))

    @property
    def num_tokens(self) -> int:
        """Tokens of the pass, guesses included."""
        guesses = sum(map(len, self.drafts.values()))
        return len(self.decode) + guesses + sum(chunk.length for chunk in self.prefill)

    @property
    def load(self) -> Load:
        """Size of the pass, for the cost model; a guess costs what a decode row does."""
        rows, context = len(self.decode), sum(len(sequence.token_ids) for sequence in self.decode)
        for sequence in self.decode if self.drafts else ():
            rows += self.guesses(sequence)
            context += self.guesses(sequence) * len(sequence.token_ids)
        return Load(
            rows,
            context,
            sum(chunk.length for chunk in self.prefill),
            sum(chunk_pairs(chunk.start, chunk.length) for chunk in self.prefill),
        )


@dataclass(slots=True)
class KVMoves:
    """Copies between a model's KV blocks and its slots of host memory: first all saves, then all loads."""

    saves: list[tuple[int, int]] = field(default_factory=list)
    """(block, slot)"""
    loads: list[tuple[int, int]] = field(default_factory=list)
    """(block, slot)"""


@dataclass(slots=True)
class TickPlan:
    """One pass for every model that has work."""

    batches: list[ModelBatch] = field(default_factory=list)
    moves: dict[int, KVMoves] = field(default_factory=dict)
    """By model: what is copied before any batch runs."""

    @property
    def drafted(self) -> bool:
        """Whether guesses stand behind rows."""
        return any(batch.drafts for batch in self.batches)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.batches and not self.moves
