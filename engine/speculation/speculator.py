"""Guesses at a row's next tokens, and whether it pays to have the model verify them.

What followed when the last tokens stood in the text before is guessed again (prompt lookup). A pass
computes the guesses behind the row's token; each one that the model would have sampled saves a tick,
and every one lengthens this one. So guesses are made where the cost model and the share of guesses
that came true so far say that more tokens per millisecond come out, and a ledger bounds what a
sequence can lose when they are wrong. This module imports no torch.
"""

from collections.abc import Mapping
from typing import Protocol

from engine.scheduler.buckets import DECODE_ROWS, padded_load, round_up
from engine.scheduler.cost_model import CostModel
from engine.scheduler.plan import ModelBatch, TickPlan
from engine.scheduler.scheduler import Scheduler
from engine.scheduler.sequence import Sequence
from engine.speculation.draft_length import Choice, Prices, choose
from engine.speculation.ngram_index import continue_from
from engine.speculation.proposer import Guesser

MARGIN = 1.05
"""A guess must be expected to give so many times the tokens per millisecond of the pass without it."""

LEAST_COST = 0.02
"""What a guess is taken to cost at least, in ticks: nothing is known of more rows before some ran."""

LEAST_HOPE = 0.02
"""Guesses expected to come true after the queued ticks, below which nothing more is looked at."""

SHARED_LOSS = 0.02
"""How much longer a tick may become for rows that guess nothing."""

READ_AHEAD = 2048
"""Tokens indexed in a tick, of a prompt that is read."""

FIRST_GAP_MS = 0.3
GAP_WEIGHT = 0.1
"""What a device that queues ticks is taken to wait between two that are not queued, before that was
measured, and the weight of one measurement."""

MOST_GAP_MS = 5.0
"""Of one measurement: a device that nobody asked for anything has waited, too."""

FORGETTING = 0.01
"""How far the wait returns towards its first value by a tick without guesses."""


class Verifier(Protocol):
    """What computes guesses: a model's runner."""

    @property
    def verify_rows(self) -> int:
        """Most tokens of a pass of decode rows with guesses behind them; 0: it verifies none."""
        ...

    def can_verify(self, sequence: Sequence, /) -> bool:
        """Whether guesses may stand behind a sequence's decode row."""
        ...


class Speculator:
    """Puts guesses behind the decode rows of plans; one for all models of an engine."""

    def __init__(self) -> None:
        self._guessers: dict[int, Guesser] = {}
        self._gap_ms = FIRST_GAP_MS
        self._drafted_at = 0.0
        """Clock at which a drafted tick ended, if that was the last one."""

    def draft(self, plan: TickPlan, scheduler: Scheduler, verifier: Verifier) -> None:
        """Fill in `drafts` of a plan in flight, of at most `verify_rows` tokens with the decode rows.

        A tick that reads prompts, or serves several models, has no time to spare: only the index
        follows it.
        """
        if not verifier.verify_rows:
            return
        for batch in plan.batches:
            for chunk in batch.prefill:
                index, ids = self._guesser(chunk.sequence).index, chunk.sequence.token_ids
                index.extend(ids, min(chunk.end, len(ids) - 1, index.seen + READ_AHEAD))
        batch = plan.batches[0]
        if len(plan.batches) > 1 or batch.prefill or batch.copies or plan.moves:
            return
        matches = False
        for sequence in batch.decode:
            matches |= verifier.can_verify(sequence) and self._guesser(sequence).look(sequence)
        free = verifier.verify_rows - len(batch.decode)
        if not matches or free <= 0:
            return
        if scheduler.config.fill_passes:
            counts = self._counts_of_pass(batch, scheduler, verifier.verify_rows)
        else:
            counts = self._counts(batch, scheduler.cost, free)
        for sequence, count in zip(batch.decode, counts, strict=True):
            count = scheduler.make_room(sequence, count) if count else 0
            if count:
                after = self._guessers[sequence.sequence_id].after
                batch.drafts[sequence.sequence_id] = continue_from(sequence.token_ids, after, count)

    def stops_queue(self, batch: ModelBatch, scheduler: Scheduler, verifier: Verifier, ahead: int) -> bool:
        """Whether no more ticks of a plan in flight should be queued, so that the next plan guesses.

        ahead: ticks that are queued; their tokens have to bear the match out before it is of use. What
        the device will have waited is accounted.
        """
        verify_rows = verifier.verify_rows
        if 2 * len(batch.decode) > verify_rows or not all(map(verifier.can_verify, batch.decode)):
            return False
        matches = [self._guesser(sequence).look(sequence) for sequence in batch.decode]
        if not all(matches):
            return False
        guessers = [self._guesser(sequence) for sequence in batch.decode]
        true, most = 1.0, 0.0
        for guesser in guessers:
            true *= guesser.chance**ahead
            most = max(most, guesser.chance / max(1.0 - guesser.chance, 1.0 / verify_rows))
        if true * most <= LEAST_HOPE:
            return False
        prices = self._prices(batch, scheduler)
        if true * most <= prices.gap_ticks:
            return False
        choice = choose(guessers, prices, verify_rows, MARGIN)
        return (
            choice is not None
            and true * choice.gain_ticks > prices.gap_ticks
            and self._pay(guessers, prices.gap_ticks)
        )

    def stays_close(self, batch: ModelBatch, scheduler: Scheduler) -> bool:
        """Whether a tick should not be queued ahead: guesses have just come true and will again.

        What the device will have waited is accounted.
        """
        guessers = [self._guessers.get(sequence.sequence_id) for sequence in batch.decode]
        close = [guesser for guesser in guessers if guesser is not None and guesser.close]
        return len(close) == len(guessers) and self._pay(close, self._prices(batch, scheduler).gap_ticks)

    def timed(self, drafted: bool, started: float, ended: float) -> None:
        """Learn what passes between ticks that are not queued, from the clock around their passes."""
        if drafted and self._drafted_at:
            gap_ms = min((started - self._drafted_at) * 1e3, MOST_GAP_MS)
            self._gap_ms += GAP_WEIGHT * (gap_ms - self._gap_ms)
        self._drafted_at = ended if drafted else 0.0

    def settle(self, plan: TickPlan, confirmed: Mapping[int, list[int]]) -> None:
        """Learn from what a tick of a drafted plan confirmed."""
        if len(plan.batches) != 1 or plan.batches[0].prefill:
            return
        batch = plan.batches[0]
        if not batch.drafts:
            self._gap_ms += FORGETTING * (FIRST_GAP_MS - self._gap_ms)
        for sequence in batch.decode:
            guesser = self._guessers.get(sequence.sequence_id)
            if guesser is not None:
                draft = batch.drafts.get(sequence.sequence_id, ())
                guesser.settle(sequence, len(draft), len(confirmed.get(sequence.sequence_id, ())))

    def forget(self, sequence_id: int) -> None:
        """Drop what is known of a sequence that ended."""
        self._guessers.pop(sequence_id, None)

    def _guesser(self, sequence: Sequence) -> Guesser:
        guesser = self._guessers.get(sequence.sequence_id)
        if guesser is None:
            guesser = self._guessers[sequence.sequence_id] = Guesser()
        return guesser

    def _prices(self, batch: ModelBatch, scheduler: Scheduler) -> Prices:
        rows, load = len(batch.decode), batch.load
        return Prices(
            max(scheduler.cost.predict(batch.model, padded_load(load)), 1e-3),
            scheduler.cost.row_ms(batch.model, load.context / rows),
            self._gap_ms,
            round_up(rows, DECODE_ROWS) or rows,
        )

    @staticmethod
    def _pay(guessers: list[Guesser], ticks: float) -> bool:
        """Take a loss from the ledgers of all rows, unless one of them holds less."""
        if any(guesser.credit < ticks for guesser in guessers):
            return False
        for guesser in guessers:
            guesser.credit -= ticks
        return True

    def _counts_of_pass(self, batch: ModelBatch, scheduler: Scheduler, verify_rows: int) -> list[int]:
        """Guesses per decode row that fill a captured pass."""
        guessers = [self._guesser(sequence) for sequence in batch.decode]
        prices = self._prices(batch, scheduler)
        choice: Choice | None = choose(guessers, prices, verify_rows, MARGIN)
        if choice is None or not (all(choice.counts) or choice.cost_ticks <= SHARED_LOSS):
            return [0] * len(guessers)
        for guesser in guessers:
            guesser.guess_ticks = choice.cost_ticks / sum(choice.counts)
        return choice.counts

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
            guesser = self._guesser(sequence)
            if guesser.level is None:
                continue
            guess_ms = max(cost.row_ms(batch.model, sequence.num_target), LEAST_COST * plain_ms)
            guesser.guess_ticks = guess_ms / plain_ms
            chance = guesser.chance
            per_ms = chance / guess_ms
            for _ in range(min(free, int(guesser.credit / guesser.guess_ticks))):
                if per_ms <= least:
                    break
                worth.append((per_ms, row, guess_ms))
                per_ms *= chance
        worth.sort(reverse=True)
        return worth
