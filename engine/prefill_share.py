"""One prefill budget for all prompts being read, so that a tick stays short whoever reads."""

from collections.abc import Callable
from collections.abc import Sequence as Items

from engine.admission import SchedulerConfig
from engine.cost_model import CostModel, Load
from engine.pass_sizes import trim_to_pass
from engine.sequence import SHARE, Sequence
from engine.tick_plan import PrefillChunk

Price = Callable[[Sequence, float], float]
"""Cost of one token of a chunk of about the given length, in the budget's unit."""


def plan_chunks(
    reading: Items[Sequence], loads: dict[int, Load], cost: CostModel, config: SchedulerConfig
) -> list[PrefillChunk]:
    """Chunks for `reading`, oldest first, beside the decode rows `loads`, by model key.

    With decode rows the budget is milliseconds, whatever the models cost; else it is tokens.
    """
    chunks = _plan(reading, loads, cost, config)
    models = {chunk.sequence.model for chunk in chunks}
    if config.fill_passes and len(models) == 1:
        load = loads.get(models.pop())
        return trim_to_pass(chunks, 0 if load is None else load.rows)
    return chunks


def _plan(
    reading: Items[Sequence], loads: dict[int, Load], cost: CostModel, config: SchedulerConfig
) -> list[PrefillChunk]:
    if not loads:
        return share_prefill(reading, config.max_prefill_tokens, lambda _sequence, _length: 1.0, 1)
    idle = cost.idle_ms(loads)
    spare = max(config.tick_factor * idle, idle + config.tick_extra_ms) - idle
    for model in {sequence.model for sequence in reading} - loads.keys():
        spare -= cost.fixed_ms(model)

    def price(sequence: Sequence, length: float) -> float:
        return cost.token_ms(sequence.model, sequence.num_computed, length)

    return share_prefill(reading, spare, price, config.min_prefill_tokens)


def share_prefill(reading: Items[Sequence], budget: float, price: Price, floor: int) -> list[PrefillChunk]:
    """Chunks for `reading` (oldest first) that cost about `budget` together.

    Everybody gets a share weighted by priority, so that short prompts finish while long ones go on;
    what a short prompt leaves goes to the oldest. At least `floor` tokens are read in any case.
    """
    if not reading:
        return []
    if len(reading) == 1:
        lengths = [_affordable(reading[0], budget, price)]
    else:
        lengths = _fair(reading, budget, price)
    _raise_to(reading, lengths, floor)
    return [
        PrefillChunk(sequence, sequence.num_computed, length)
        for sequence, length in zip(reading, lengths, strict=True)
        if length
    ]


def _fair(reading: Items[Sequence], budget: float, price: Price) -> list[int]:
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
