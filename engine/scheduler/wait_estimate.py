"""How long a sequence will wait for its first token, by the cost model. This module imports no torch."""

from engine.api.stats import SequenceState
from engine.scheduler.chunked_prefill import NO_LIMIT
from engine.scheduler.cost_model import CostModel, Load
from engine.scheduler.queue import Roster
from engine.scheduler.sequence import Sequence


def waiting_seconds(
    sequence: Sequence, roster: Roster, loads: dict[int, Load], limit_ms: float, cost: CostModel
) -> float | None:
    """Seconds until the known tokens of `sequence` are computed; None if it decodes or is held.

    loads: the decode rows beside which prompts are read; limit_ms: of a tick. Who waits for KV memory
    waits at most until the first of those that decode reaches its limit, which is what is counted.
    """
    if sequence.held or sequence.state is SequenceState.DECODE:
        return None
    ms = sum(_read_ms(other, cost) for other in _before(sequence, roster)) + _read_ms(sequence, cost)
    idle = cost.idle_ms(loads)
    if limit_ms != NO_LIMIT and limit_ms > idle:
        ms *= limit_ms / (limit_ms - idle)
    if sequence.note and not sequence.block_table:
        decoding = [s for s in roster.running if s.state is SequenceState.DECODE]
        ms += min(((s.limit - s.num_target) * max(idle, 0.0) for s in decoding), default=0.0)
    return ms / 1e3


def _before(sequence: Sequence, roster: Roster) -> list[Sequence]:
    """Whose tokens are computed before those of `sequence`, where shares are not counted."""
    if roster.is_focused(sequence):
        return []
    reading = [s for s in roster.active() if s.state is SequenceState.PREFILL]
    if sequence in reading:
        return reading[: reading.index(sequence)]
    waiting = [s for s in roster.queue if not s.held]
    # While the engine is built again its sequences are in no queue: then they come last.
    return reading + (waiting[: waiting.index(sequence)] if sequence in waiting else waiting)


def _read_ms(sequence: Sequence, cost: CostModel) -> float:
    return cost.token_ms(sequence.model, sequence.num_computed, sequence.remaining) * sequence.remaining
