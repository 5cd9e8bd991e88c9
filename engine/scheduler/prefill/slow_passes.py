"""Prompts of models whose passes take many times as long as others' on their device.

The processor computes a part of such a model, so that even its shortest pass may last longer than a tick of
the other models should. Its prompts have a budget of their own: what they take is not taken from others'
prompts, and beside running answers a pass of theirs may last `tick_factor` times what this model's pass of
its rows, or of next to nothing, lasts. Alone they are read for `ALONE_MS` at a time, so that whoever comes
waits no longer.

Where chunks of many tokens cost little more than those of some, they are as long as can be: their passes are
left half-way for other models' ticks, and go on in the next tick.
"""

from collections.abc import Mapping

from engine.scheduler.buckets import trim_to_cap, trim_to_few
from engine.scheduler.config import SchedulerConfig, SlowPasses
from engine.scheduler.cost_model import CostModel, Load
from engine.scheduler.plan import ModelBatch, PrefillChunk
from engine.scheduler.prefill.chunked_prefill import UNMEASURED, Readers, plan_chunks, share_prefill
from engine.scheduler.sequence import Sequence

ALONE_MS = 400.0
SLICE_MS = 20.0
"""Of a pass that is left half-way, beside running answers."""
FIRST_ALONE = 32
"""Tokens of a first chunk that nobody runs beside, where nobody knows yet what this model takes."""


class SlowModels:
    """Such models by key, and their chunks that were left half-way."""

    def __init__(self) -> None:
        self._passes: dict[int, SlowPasses] = {}
        self._begun: dict[int, list[PrefillChunk]] = {}

    def __contains__(self, model: int) -> bool:
        return model in self._passes

    def add(self, model: int, passes: SlowPasses) -> None:
        """Plan a model's prompts here from now on."""
        self._passes[model] = passes

    def remove(self, model: int) -> None:
        """Forget a model, one of them or not."""
        self._passes.pop(model, None)
        self._begun.pop(model, None)

    def plan(
        self,
        readers: Readers,
        loads: dict[int, Load],
        spare_ms: float,
        cost: CostModel,
        config: SchedulerConfig,
        most: int,
    ) -> list[PrefillChunk]:
        """Chunks for `readers`, as `plan_chunks`."""
        others = {sequence.model for sequence in readers.sequences} - self._passes.keys()
        chunks = plan_chunks(readers.of(others), loads, spare_ms, cost, config, most)
        for model, passes in self._passes.items():
            own, begun = readers.of({model}), self._begun.get(model, [])
            if _can_go_on(own, begun):
                chunks += begun
            elif own.sequences:
                chunks += _plan_slow(own, loads, passes, cost, config, most)
        return chunks

    def limit(self, batches: Mapping[int, ModelBatch], loads: Mapping[int, Load]) -> None:
        """Say after how long their chunks may be left beside these rows."""
        for model in self._passes:
            batches[model].slice_ms = SLICE_MS if loads else ALONE_MS

    def left(self, batch: ModelBatch, unfinished: bool) -> None:
        """Note what a pass has left half-way, which counts when it is done."""
        self._begun.pop(batch.model, None)
        if unfinished:
            self._begun[batch.model], batch.prefill = batch.prefill, []


def _can_go_on(readers: Readers, begun: list[PrefillChunk]) -> bool:
    """Whether all of them are still to be read."""
    return bool(begun) and all(
        chunk.sequence in readers.sequences
        and chunk.start == chunk.sequence.num_computed
        and chunk.end <= chunk.sequence.num_target
        for chunk in begun
    )


def _plan_slow(
    readers: Readers,
    loads: Mapping[int, Load],
    passes: SlowPasses,
    cost: CostModel,
    config: SchedulerConfig,
    most: int,
) -> list[PrefillChunk]:
    """Chunks for prompts of one such model."""
    model = readers.sequences[0].model
    waiting = sum(sequence.remaining for sequence in readers.sequences)
    if passes.long_from is not None and waiting >= passes.long_from:
        most = passes.most_tokens
        return trim_to_cap(share_prefill(readers, most, lambda _sequence, _length: 1.0, 1), most)
    most = min(most, passes.most_tokens)
    if not cost.has_read(model):
        most = min(most, UNMEASURED if loads else FIRST_ALONE)
        return trim_to_cap(share_prefill(readers, most, lambda _sequence, _length: 1.0, 1), most)

    def price(sequence: Sequence, length: float) -> float:
        return cost.token_ms(model, sequence.num_computed, length)

    budget = _budget(model, loads, cost, config)
    chunks = trim_to_cap(share_prefill(readers, budget, price, config.min_prefill_tokens), most)
    if not loads or passes.few_tokens is None:
        return chunks
    rows = loads[model].rows if model in loads else 0
    return trim_to_few(chunks, passes.few_tokens - rows)


def _budget(model: int, loads: Mapping[int, Load], cost: CostModel, config: SchedulerConfig) -> float:
    """Milliseconds for what is read, beside what a pass costs in any case."""
    reads = cost.chunk_ms(model)
    if not loads:
        return ALONE_MS - cost.fixed_ms(model) - reads
    own = cost.idle_ms({model: loads[model]}) if model in loads else cost.fixed_ms(model) + reads
    return (config.tick_factor - 1.0) * own - (reads if model in loads else 0.0)
