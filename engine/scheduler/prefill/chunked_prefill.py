"""One prefill budget for all prompts being read, so that a tick stays short whoever reads."""

from collections.abc import Callable, Container
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

from engine.scheduler.buckets import round_to_step, trim_to_cap, trim_to_few, trim_to_pass
from engine.scheduler.config import SchedulerConfig
from engine.scheduler.cost_model import CostModel, Load
from engine.scheduler.plan import PrefillChunk
from engine.scheduler.sequence import SHARE, Sequence

Price = Callable[[Sequence, float], float]
"""Cost of one token of a chunk of about the given length, in the budget's unit."""

NO_LIMIT = float("inf")

UNMEASURED = 4
"""Tokens of a model's first chunk beside rows of others, where a pass of few tokens costs less: nobody
knows yet what this model takes, and the first pass tells."""


@dataclass(frozen=True, slots=True)
class Readers:
    """Whose prompts are read in this tick, the most urgent first."""

    sequences: list[Sequence]
    alone: bool = False
    """Whether the first takes what it can use, and only the rest is shared."""

    def of(self, models: Container[int]) -> "Readers":
        """Those of some models."""
        own = [sequence for sequence in self.sequences if sequence.model in models]
        return Readers(own, self.alone and own[:1] == self.sequences[:1])


def order_readers(reading: Items[Sequence], focus: int | None, now: float, starve_s: float) -> Readers:
    """The focused prompt is read first and alone, unless another has waited for `starve_s` seconds.

    Then everybody gets a fair share, beginning with those who waited. `reading` is in order of rank.
    """
    late = {s.sequence_id for s in reading if now - s.read_at >= starve_s and s.sequence_id != focus}
    ordered = sorted(reading, key=lambda s: (s.sequence_id not in late, s.sequence_id != focus))
    return Readers(ordered, alone=not late and bool(ordered) and ordered[0].sequence_id == focus)


def tick_limit(loads: dict[int, Load], cost: CostModel, config: SchedulerConfig) -> float:
    """Milliseconds that a tick may take beside the decode rows `loads`, by model key."""
    if not loads:
        return NO_LIMIT
    idle = cost.idle_ms(loads)
    return max(config.tick_factor * idle, idle + config.tick_extra_ms)


def plan_chunks(
    readers: Readers,
    loads: dict[int, Load],
    spare_ms: float,
    cost: CostModel,
    config: SchedulerConfig,
    most: int,
) -> list[PrefillChunk]:
    """Chunks for `readers` beside the decode rows `loads`, by model key.

    With decode rows the budget is `spare_ms`, whatever the models cost; else it is `most` tokens, and
    there are never more.
    """
    if loads:
        chunks = _beside_rows(readers, loads, spare_ms, cost, config)
    else:
        chunks = share_prefill(readers, most, lambda _sequence, _length: 1.0, 1)
    chunks = trim_to_cap(chunks, most)
    models = {chunk.sequence.model for chunk in chunks}
    if len(models) != 1:
        return chunks
    load = loads.get(models.pop())
    rows = 0 if load is None else load.rows
    if config.fill_passes:
        return trim_to_pass(chunks, rows)
    if config.few_tokens is not None and loads:
        room = config.few_tokens - rows
        return round_to_step(trim_to_few(chunks, room), min(room, most))
    return chunks


def _beside_rows(
    readers: Readers, loads: dict[int, Load], spare_ms: float, cost: CostModel, config: SchedulerConfig
) -> list[PrefillChunk]:
    for model in {sequence.model for sequence in readers.sequences}:
        spare_ms -= cost.chunk_ms(model) + (0.0 if model in loads else cost.fixed_ms(model))

    def price(sequence: Sequence, length: float) -> float:
        return cost.token_ms(sequence.model, sequence.num_computed, length)

    chunks = share_prefill(readers, spare_ms, price, config.min_prefill_tokens)
    if config.few_tokens is None:
        return chunks
    return [
        chunk if cost.has_read(chunk.sequence.model) else replace(chunk, length=min(chunk.length, UNMEASURED))
        for chunk in chunks
    ]


def share_prefill(readers: Readers, budget: float, price: Price, floor: int) -> list[PrefillChunk]:
    """Chunks that cost about `budget` together.

    Everybody gets a share weighted by priority, so that short prompts finish while long ones go on;
    what a short prompt leaves goes to the first. At least `floor` tokens are read in any case.
    """
    reading = readers.sequences
    if not reading:
        return []
    if readers.alone or len(reading) == 1:
        lengths = [_affordable(reading[0], budget, price)]
        left = budget - lengths[0] * price(reading[0], lengths[0])
        lengths += _fair(reading[1:], left, price)
    else:
        lengths = _fair(reading, budget, price)
    _raise_to(reading, lengths, floor)
    return [
        PrefillChunk(sequence, sequence.num_computed, length)
        for sequence, length in zip(reading, lengths, strict=True)
        if length
    ]


def _fair(reading: Items[Sequence], budget: float, price: Price) -> list[int]:
    """Lengths of chunks by shares; what is left over goes to the first who can use it."""
    total = sum(SHARE[sequence.priority] for sequence in reading)
    lengths: list[int] = []
    left = budget
    for sequence in reading:
        part = budget * SHARE[sequence.priority] / total
        lengths.append(_affordable(sequence, part, price))
        left -= lengths[-1] * price(sequence, lengths[-1])
    for i, sequence in enumerate(reading):
        rate = price(sequence, lengths[i])
        more = min(sequence.remaining - lengths[i], max(int(left / rate), 0))
        lengths[i] += more
        left -= more * rate
    return lengths


def _raise_to(reading: Items[Sequence], lengths: list[int], floor: int) -> None:
    missing = floor - sum(lengths)
    for i, sequence in enumerate(reading):
        if missing <= 0:
            return
        more = min(missing, sequence.remaining - lengths[i])
        lengths[i] += more
        missing -= more


def _affordable(sequence: Sequence, budget: float, price: Price) -> int:
    if budget <= 0.0:
        return 0
    length = budget / price(sequence, 0.0)
    length = budget / price(sequence, min(length, sequence.remaining))
    return min(int(length), sequence.remaining)
