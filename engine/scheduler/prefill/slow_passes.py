"""Prompts of models whose passes take many times as long as others' on their device.

The processor computes a part of such a model, so that even its shortest pass may last longer than a tick of
the other models should. Its prompts have a budget of their own: what they take is not taken from others'
prompts, and beside running answers a pass of theirs may last `tick_factor` times what this model's pass of
its rows, or of next to nothing, lasts. Alone they are read for `ALONE_MS` at a time, so that whoever comes
waits no longer.
"""

from collections.abc import Mapping

from engine.scheduler.buckets import trim_to_cap, trim_to_few
from engine.scheduler.config import SchedulerConfig, SlowPasses
from engine.scheduler.cost_model import CostModel, Load
from engine.scheduler.plan import PrefillChunk
from engine.scheduler.prefill.chunked_prefill import UNMEASURED, Readers, plan_chunks, share_prefill
from engine.scheduler.sequence import Sequence

ALONE_MS = 400.0
FIRST_ALONE = 32
"""Tokens of a first chunk that nobody runs beside, where nobody knows yet what this model takes."""


def plan_prefill(
    readers: Readers,
    loads: dict[int, Load],
    spare_ms: float,
    cost: CostModel,
    config: SchedulerConfig,
    most: int,
    slow: Mapping[int, SlowPasses],
) -> list[PrefillChunk]:
    """Chunks for `readers`, as `plan_chunks`; slow: such models, by key."""
    others = {sequence.model for sequence in readers.sequences} - slow.keys()
    chunks = plan_chunks(readers.of(others), loads, spare_ms, cost, config, most)
    for model, passes in slow.items():
        own = readers.of({model})
        if own.sequences:
            chunks += _plan_slow(own, loads, passes, cost, config, most)
    return chunks


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
