"""Guesses at a row's next tokens, and whether it pays to have the model verify them.

What followed when the last tokens stood in the text before is guessed again (prompt lookup). A pass
computes the guesses behind the row's token; each one that the model would have sampled saves a tick,
and every one lengthens this one. So guesses are made where the cost model and the share of guesses
that came true so far say that more tokens per millisecond come out, and a ledger bounds what a
sequence can lose when they are wrong. This module imports no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.cost_model import CostModel
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.suffix_index import SuffixIndex, continue_from
from engine.tick_plan import ModelBatch, TickPlan

CHANCES = ((8, 0.8), (4, 0.6), (3, 0.4), (2, 0.25))
"""(shortest match, chance of a guess at first): the longer the match, the likelier the guess."""

LEARNING = 0.1
"""Weight of one guess against those before it."""

FORGETTING = 0.01
"""How far a chance returns towards its first value by a match that was not tried."""

MARGIN = 1.05
"""A guess must be expected to give so many times the tokens per millisecond of the pass without it."""

FIRST_CREDIT = 0.5
MOST_CREDIT = 2.0
EARNED = 0.01
"""The ledger of a sequence, in ticks without guesses: what it may lose at first, what it may keep of
the ticks that guesses saved, and what it earns with every tick."""

LEAST_COST = 0.02
"""What a guess is taken to cost at least, in ticks: nothing is known of more rows before some ran."""

SHARED_LOSS = 0.02
"""How much longer a tick may become for rows that guess nothing."""

CATCH_UP = 32
READ_AHEAD = 2048
"""Tokens indexed in a tick, of a row that decodes and of a prompt that is read."""


@dataclass(slots=True)
class Guesser:
    """What is known of one sequence."""

    index: SuffixIndex = field(default_factory=SuffixIndex)
    chances: list[float] = field(default_factory=lambda: [chance for _, chance in CHANCES])
    credit: float = FIRST_CREDIT
    level: int | None = None
    """Of `CHANCES`, the present match's; None without one."""
    after: int = 0
    """Where the text went on after the match."""
    guess_ticks: float = 0.0
    """What a guess of this tick costs, in ticks without guesses."""

    def look(self, sequence: Sequence) -> bool:
        """Bring the index up to date and match the end of the text; whether there is a match."""
        token_ids = sequence.token_ids
        self.index.extend(token_ids, min(len(token_ids) - 1, self.index.seen + CATCH_UP))
        length, self.after = self.index.match(token_ids)
        self.level = None
        if not length:
            return False
        self.level = next((level for level, (least, _) in enumerate(CHANCES) if length >= least), None)
        return True

    def settle(self, guesses: int, confirmed: int) -> None:
        """Account a tick: what it gave and cost, and what that says about such matches."""
        self.credit = min(MOST_CREDIT, self.credit + EARNED + confirmed - guesses * self.guess_ticks)
        if self.level is None:
            return
        chance = self.chances[self.level]
        if not guesses:
            self.chances[self.level] = chance + FORGETTING * (CHANCES[self.level][1] - chance)
            return
        kept = (1.0 - LEARNING) ** confirmed
        chance = 1.0 - kept * (1.0 - chance)
        self.chances[self.level] = chance if confirmed == guesses else chance * (1.0 - LEARNING)


class Speculator:
    """Puts guesses behind the decode rows of plans; one for all models of an engine."""

    def __init__(self) -> None:
        self._guessers: dict[int, Guesser] = {}

    def draft(self, plan: TickPlan, scheduler: Scheduler, verify_rows: int) -> None:
        """Fill in `drafts` of a plan in flight, of at most `verify_rows` tokens with the decode rows.

        A tick that reads prompts, or serves several models, has no time to spare: only the index
        follows it.
        """
        for batch in plan.batches:
            for chunk in batch.prefill:
                index, ids = self._guesser(chunk.sequence).index, chunk.sequence.token_ids
                index.extend(ids, min(chunk.end, len(ids) - 1, index.seen + READ_AHEAD))
        batch = plan.batches[0]
        if len(plan.batches) > 1 or batch.prefill or batch.copies or plan.moves:
            return
        matches = False
        for sequence in batch.decode:
            matches |= self._guesser(sequence).look(sequence)
        free = verify_rows - len(batch.decode)
        if not matches or free <= 0:
            return
        counts = self._counts(batch, scheduler.cost, free)
        for sequence, count in zip(batch.decode, counts, strict=True):
            count = scheduler.make_room(sequence, count) if count else 0
            if count:
                after = self._guessers[sequence.sequence_id].after
                batch.drafts[sequence.sequence_id] = continue_from(sequence.token_ids, after, count)

    def settle(self, plan: TickPlan, confirmed: Mapping[int, list[int]]) -> None:
        """Learn from what a tick of a drafted plan confirmed."""
        if len(plan.batches) != 1 or plan.batches[0].prefill:
            return
        batch = plan.batches[0]
        for sequence in batch.decode:
            guesser = self._guessers.get(sequence.sequence_id)
            if guesser is not None:
                draft = batch.drafts.get(sequence.sequence_id, ())
                guesser.settle(len(draft), len(confirmed.get(sequence.sequence_id, ())))

    def forget(self, sequence_id: int) -> None:
        """Drop what is known of a sequence that ended."""
        self._guessers.pop(sequence_id, None)

    def _guesser(self, sequence: Sequence) -> Guesser:
        guesser = self._guessers.get(sequence.sequence_id)
        if guesser is None:
            guesser = self._guessers[sequence.sequence_id] = Guesser()
        return guesser

    def _counts(self, batch: ModelBatch, cost: CostModel, free: int) -> list[int]:
        """Guesses per decode row: the likeliest first, while the pass gives more per millisecond."""
        counts = [0] * len(batch.decode)
        plain_ms = cost.predict(batch.model, batch.load)
        if plain_ms <= 0.0:
            return counts
        worth = self._worth(batch, cost, free, plain_ms)
        tokens, ms, longer = float(len(counts)), plain_ms, 0.0
        for per_ms, row, guess_ms in worth[:free]:
            if per_ms <= MARGIN * tokens / ms:
                break
            counts[row] += 1
            tokens += per_ms * guess_ms
            ms += guess_ms
            longer += cost.row_ms(batch.model, batch.decode[row].num_target)
        return counts if all(counts) or longer <= SHARED_LOSS * plain_ms else [0] * len(counts)

    def _worth(
        self, batch: ModelBatch, cost: CostModel, free: int, plain_ms: float
    ) -> list[tuple[float, int, float]]:
        """(tokens per millisecond, row, milliseconds) of all guesses that could pay, the best first."""
        least = MARGIN * len(batch.decode) / plain_ms
        worth = []
        for row, sequence in enumerate(batch.decode):
            guesser = self._guessers[sequence.sequence_id]
            if guesser.level is None:
                continue
            guess_ms = max(cost.row_ms(batch.model, sequence.num_target), LEAST_COST * plain_ms)
            guesser.guess_ticks = guess_ms / plain_ms
            chance = guesser.chances[guesser.level]
            per_ms = chance / guess_ms
            for _ in range(min(free, int(guesser.credit / guesser.guess_ticks))):
                if per_ms <= least:
                    break
                worth.append((per_ms, row, guess_ms))
                per_ms *= chance
        worth.sort(reverse=True)
        return worth
