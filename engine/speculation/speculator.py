"""Draft tokens for a row, and whether it pays to have the model verify them.

What followed when the last tokens stood in the text before is proposed again (prompt lookup). A pass
computes the draft tokens behind the row's token; each one that the model would have sampled saves a tick,
and every one lengthens this one. So tokens are drafted where the cost model and the share accepted so far
say that more tokens per millisecond come out, and a ledger bounds what a sequence can lose when they are
wrong.
"""

from collections.abc import Callable, Mapping

from engine.scheduler.buckets import DECODE_ROWS, padded_load, round_up
from engine.scheduler.config import SchedulerConfig
from engine.scheduler.cost_model import CostModel
from engine.scheduler.plan import ModelBatch, TickPlan, Verifier
from engine.scheduler.sequence import Sequence
from engine.speculation.draft_length import Choice, Prices, choose
from engine.speculation.ngram_index import continue_from
from engine.speculation.proposer import Proposer

MARGIN = 1.05
"""A draft token must be expected to give so many times the tokens per millisecond of the pass without it."""

LEAST_COST = 0.02
"""What a draft token is taken to cost at least, in ticks: nothing is known of more rows before some ran."""

LEAST_HOPE = 0.02
"""Draft tokens expected to be accepted after the queued ticks, below which nothing more is looked at."""

SHARED_LOSS = 0.02
"""How much longer a tick may become for rows that draft nothing."""

READ_AHEAD = 2048
"""Tokens indexed in a tick, of a prompt that is read."""

FIRST_GAP_MS = 0.3
GAP_WEIGHT = 0.1
"""What a device that queues ticks is taken to wait between two that are not queued, before that was
measured, and the weight of one measurement."""

MOST_GAP_MS = 5.0
"""Of one measurement: a device that nobody asked for anything has waited, too."""

FORGETTING = 0.01
"""How far the wait returns towards its first value by a tick without drafts."""


class Speculator:
    """Puts draft tokens behind the decode rows of plans; one for all models of an engine."""

    def __init__(
        self, cost: CostModel, config: SchedulerConfig, make_room: Callable[[Sequence, int], int]
    ) -> None:
        """make_room: how many of so many drafts may stand behind a sequence's row; takes their blocks."""
        self.enabled = config.speculation
        self._cost = cost
        self._fill_passes = config.fill_passes
        self._make_room = make_room
        self._proposers: dict[int, Proposer] = {}
        self._gap_ms = FIRST_GAP_MS
        self._drafted_at = 0.0
        """Clock at which a drafted tick ended, if that was the last one."""

    def draft(self, plan: TickPlan, verifier: Verifier) -> None:
        """Fill in `drafts` of a plan in flight, of at most `verify_rows` tokens with the decode rows.

        Clears `may_queue` where the next tick should have drafts too; what the device will have waited
        then is accounted.
        """
        if not self.enabled:
            return
        if verifier.verify_rows:
            self._add_drafts(plan, verifier)
        batch = plan.decode_only
        if plan.drafted or (batch is not None and verifier.max_ahead and self._stays_close(batch)):
            plan.may_queue = False

    def _add_drafts(self, plan: TickPlan, verifier: Verifier) -> None:
        """Only index the text in a tick that reads prompts or serves several models: it has no time."""
        for batch in plan.batches:
            for chunk in batch.prefill:
                index, ids = self._proposer(chunk.sequence).index, chunk.sequence.token_ids
                index.extend(ids, min(chunk.end, len(ids) - 1, index.seen + READ_AHEAD))
        batch = plan.batches[0]
        if len(plan.batches) > 1 or batch.prefill or plan.moves:
            return
        matches = False
        for sequence in batch.decode:
            matches |= verifier.can_verify(sequence) and self._proposer(sequence).look(sequence)
        free = verifier.verify_rows - len(batch.decode)
        if not matches or free <= 0:
            return
        if self._fill_passes and verifier.max_ahead:
            counts = self._counts_of_pass(batch, verifier.verify_rows)
        else:
            counts = self._counts(batch, free)
        for sequence, count in zip(batch.decode, counts, strict=True):
            count = self._make_room(sequence, count) if count else 0
            if count:
                after = self._proposers[sequence.sequence_id].after
                batch.drafts[sequence.sequence_id] = continue_from(sequence.token_ids, after, count)

    def stops_queue(self, batch: ModelBatch, verifier: Verifier, ahead: int) -> bool:
        """Whether no more ticks of a plan in flight should be queued, so that the next plan drafts.

        ahead: ticks that are queued; their tokens have to bear the match out before it is of use. What
        the device will have waited is accounted.
        """
        verify_rows = verifier.verify_rows
        if not self.enabled or 2 * len(batch.decode) > verify_rows:
            return False
        if not all(map(verifier.can_verify, batch.decode)):
            return False
        matches = [self._proposer(sequence).look(sequence) for sequence in batch.decode]
        if not all(matches):
            return False
        proposers = [self._proposer(sequence) for sequence in batch.decode]
        true, most = 1.0, 0.0
        for proposer in proposers:
            true *= proposer.chance**ahead
            most = max(most, proposer.chance / max(1.0 - proposer.chance, 1.0 / verify_rows))
        if true * most <= LEAST_HOPE:
            return False
        prices = self._prices(batch)
        if true * most <= prices.gap_ticks:
            return False
        choice = choose(proposers, prices, verify_rows, MARGIN)
        return (
            choice is not None
            and true * choice.gain_ticks > prices.gap_ticks
            and self._pay(proposers, prices.gap_ticks)
        )

    def settle(self, plan: TickPlan, accepted: Mapping[int, list[int]], started: float, ended: float) -> None:
        """Learn from what a tick accepted, and from when it ran."""
        if plan.drafted and self._drafted_at:
            gap_ms = min((started - self._drafted_at) * 1e3, MOST_GAP_MS)
            self._gap_ms += GAP_WEIGHT * (gap_ms - self._gap_ms)
        self._drafted_at = ended if plan.drafted else 0.0
        if len(plan.batches) != 1 or plan.batches[0].prefill:
            return
        batch = plan.batches[0]
        if not batch.drafts:
            self._gap_ms += FORGETTING * (FIRST_GAP_MS - self._gap_ms)
        for sequence in batch.decode:
            proposer = self._proposers.get(sequence.sequence_id)
            if proposer is not None:
                draft = batch.drafts.get(sequence.sequence_id, ())
                proposer.settle(sequence, len(draft), len(accepted.get(sequence.sequence_id, ())))

    def _stays_close(self, batch: ModelBatch) -> bool:
        """Whether drafts have just been accepted and will be again."""
        proposers = [self._proposers.get(sequence.sequence_id) for sequence in batch.decode]
        close = [proposer for proposer in proposers if proposer is not None and proposer.close]
        return len(close) == len(proposers) and self._pay(close, self._prices(batch).gap_ticks)

    def forget(self, sequence_id: int) -> None:
        """Drop what is known of a sequence that ended: the index of its text."""
        self._proposers.pop(sequence_id, None)

    def _proposer(self, sequence: Sequence) -> Proposer:
        proposer = self._proposers.get(sequence.sequence_id)
        if proposer is None:
            proposer = self._proposers[sequence.sequence_id] = Proposer()
        return proposer

    def _prices(self, batch: ModelBatch) -> Prices:
        rows, load, cost = len(batch.decode), batch.load, self._cost
        return Prices(
            max(cost.predict(batch.model, padded_load(load)), 1e-3),
            cost.row_ms(batch.model, load.context / rows),
            self._gap_ms,
            round_up(rows, DECODE_ROWS) or rows,
        )

    @staticmethod
    def _pay(proposers: list[Proposer], ticks: float) -> bool:
        """Take a loss from the ledgers of all rows, unless one of them holds less."""
        if any(proposer.credit < ticks for proposer in proposers):
            return False
        for proposer in proposers:
            proposer.credit -= ticks
        return True

    def _counts_of_pass(self, batch: ModelBatch, verify_rows: int) -> list[int]:
        """Draft tokens per decode row that fill a captured pass."""
        proposers = [self._proposer(sequence) for sequence in batch.decode]
        prices = self._prices(batch)
        choice: Choice | None = choose(proposers, prices, verify_rows, MARGIN)
        if choice is None or not (all(choice.counts) or choice.cost_ticks <= SHARED_LOSS):
            return [0] * len(proposers)
        for proposer in proposers:
            proposer.draft_ticks = choice.cost_ticks / sum(choice.counts)
        return choice.counts

    def _counts(self, batch: ModelBatch, free: int) -> list[int]:
        """Draft tokens per decode row: the likeliest first, while the pass gives more per millisecond."""
        counts, cost = [0] * len(batch.decode), self._cost
        plain_ms = cost.predict(batch.model, batch.load)
        if plain_ms <= 0.0:
            return counts
        worth = self._worth(batch, cost, free, plain_ms)
        tokens, ms, longer = float(len(counts)), plain_ms, 0.0
        for per_ms, row, draft_ms in worth[:free]:
            if per_ms <= MARGIN * tokens / ms:
                break
            counts[row] += 1
            tokens += per_ms * draft_ms
            ms += draft_ms
            longer += cost.row_ms(batch.model, batch.decode[row].num_target)
        return counts if all(counts) or longer <= SHARED_LOSS * plain_ms else [0] * len(counts)

    def _worth(
        self, batch: ModelBatch, cost: CostModel, free: int, plain_ms: float
    ) -> list[tuple[float, int, float]]:
        """(tokens per millisecond, row, milliseconds) of all draft tokens that could pay, the best first."""
        least = MARGIN * len(batch.decode) / plain_ms
        worth = []
        for row, sequence in enumerate(batch.decode):
            proposer = self._proposer(sequence)
            if proposer.level is None:
                continue
            draft_ms = max(cost.row_ms(batch.model, sequence.num_target), LEAST_COST * plain_ms)
            proposer.draft_ticks = draft_ms / plain_ms
            chance = proposer.chance
            per_ms = chance / draft_ms
            for _ in range(min(free, int(proposer.credit / proposer.draft_ticks))):
                if per_ms <= least:
                    break
                worth.append((per_ms, row, draft_ms))
                per_ms *= chance
        worth.sort(reverse=True)
        return worth
