"""How long sequences will wait for their first tokens, by the cost model."""

from collections.abc import Iterable

from engine.api.stats import SequenceState
from engine.scheduler.cost_model import CostModel, Load
from engine.scheduler.prefill.chunked_prefill import NO_LIMIT
from engine.scheduler.prefill.pace import LONG_MS, unread_ms
from engine.scheduler.queue import SequenceQueue
from engine.scheduler.sequence import Sequence, WaitCause


def wait_seconds(
    sequences: Iterable[Sequence],
    queue: SequenceQueue,
    loads: dict[int, Load],
    limit_ms: float,
    cycle_ms: float,
    cost: CostModel,
) -> dict[int, float]:
    """Seconds until the known tokens are computed, by id; nothing for who decodes or was paused on request.

    loads: the decode rows beside which prompts are read; limit_ms: of a tick; cycle_ms: from one that reads
    a long prompt to the next. Shares are not counted: the focused prompt is read first, then those being
    read, then those that wait. Who waits for KV memory waits at most until the first of those that decode
    reaches its limit, which is what is counted.
    """
    idle = cost.idle_ms(loads)
    decoding = [s for s in queue.running if s.state is SequenceState.DECODE]
    first_end_ms = min(((s.limit - s.num_target) * max(idle, 0.0) for s in decoding), default=0.0)
    before_ms, found = 0.0, {}
    for sequence in _in_order(sequences, queue):
        read_ms = unread_ms(sequence, cost)
        ms = read_ms if queue.is_focused(sequence) else before_ms + read_ms
        spare_ms = limit_ms - idle - cost.chunk_ms(sequence.model)
        if limit_ms != NO_LIMIT and spare_ms > 0.0:
            ms *= (cycle_ms if read_ms > LONG_MS else limit_ms) / spare_ms
        before_ms += read_ms
        if sequence.wait_cause is WaitCause.KV_MEMORY:
            ms += first_end_ms
        found[sequence.sequence_id] = ms / 1e3
    return found


def _in_order(sequences: Iterable[Sequence], queue: SequenceQueue) -> list[Sequence]:
    """Who will be read: those that are, then those that wait, then who is in no queue."""
    known = [s for s in queue.active() if s.state is SequenceState.PREFILL]
    known += [s for s in queue.waiting if not s.user_paused]
    ids = {sequence.sequence_id for sequence in known}
    # While the engine is built again its sequences are in no queue.
    lost = [s for s in sequences if s.sequence_id not in ids and not s.block_table and not s.user_paused]
    return known + [s for s in lost if s.state is not SequenceState.DECODE]
