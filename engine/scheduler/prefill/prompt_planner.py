"""Which prompts a tick reads, and how much of them: order, budget, rests and limits put together."""

from collections.abc import Collection
from collections.abc import Sequence as Items

from engine.scheduler.config import SchedulerConfig
from engine.scheduler.cost_model import CostModel, Load
from engine.scheduler.plan import ModelBatch, PrefillChunk
from engine.scheduler.prefill.chunked_prefill import order_readers
from engine.scheduler.prefill.pace import LONG_MS, Pace, unread_ms
from engine.scheduler.prefill.prefill_limit import PrefillLimit
from engine.scheduler.prefill.slow_passes import SlowModels
from engine.scheduler.sequence import Sequence


class PromptPlanner:
    """The chunks of each tick, and what ticks teach about the next ones."""

    def __init__(self, cost: CostModel, config: SchedulerConfig) -> None:
        self.limit = PrefillLimit(config.max_prefill_tokens)
        self.slow = SlowModels()
        self.pace = Pace(config.tick_factor, looks=config.few_tokens is not None)
        self._cost, self._config = cost, config

    def plan(
        self, reading: Items[Sequence], focus: int | None, loads: dict[int, Load], spare_ms: float, now: float
    ) -> list[PrefillChunk]:
        """Chunks of `reading`, sequences in order of rank, beside the decode rows `loads`, by model key.

        Models with a budget of their own are read in rests too: those are for the others' sake.
        """
        others = [sequence for sequence in reading if sequence.model not in self.slow]
        short = any(unread_ms(sequence, self._cost) <= LONG_MS for sequence in others)
        rests = self.pace.begin(self._cost.idle_ms(loads), bool(others) and not short, now)
        if rests:
            reading = [sequence for sequence in reading if sequence.model in self.slow]
        readers = order_readers(reading, focus, now, self._config.starve_s)
        most = self.limit.most(bool(loads))
        chunks = self.slow.plan(readers, loads, spare_ms, self._cost, self._config, most)
        if short or any(chunk.sequence.model in self.slow for chunk in chunks):
            self.pace.skip()
        if not rests:
            self.limit.planned(sum(chunk.length for chunk in chunks), bool(loads))
        return chunks

    def observe(self, batch: ModelBatch, load: Load, ms: float) -> None:
        """Learn from one measured pass, before `done`."""
        self._cost.observe(batch.model, load, ms, steady=self.pace.steady)

    def done(self, batches: Items[ModelBatch], unfinished: Collection[int], now: float | None) -> None:
        """Account a tick before its sequences advance; unfinished: models whose chunks wait."""
        for batch in batches:
            self.limit.passed(len(batch.prefill))
            self.slow.left(batch, batch.model in unfinished)
        self.pace.end(now)
