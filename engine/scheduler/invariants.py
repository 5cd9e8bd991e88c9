"""What must hold between two ticks; what costs as much as there are blocks is for the debug mode."""

from collections.abc import Iterable, Mapping

from engine.api.errors import InvariantError
from engine.scheduler.limits import ScheduledModel
from engine.scheduler.sequence import Sequence


def check_counts(models: Mapping[int, ScheduledModel], running: int, waiting: int, live: int) -> None:
    """The cheap ones: how many sequences and blocks there are; raises `InvariantError`."""
    if running + waiting != live:
        raise InvariantError(f"scheduler: {running} running and {waiting} waiting sequences are not {live}")
    for model in models.values():
        model.blocks.check_counts()


def check_invariants(
    models: Mapping[int, ScheduledModel], running: Iterable[Sequence], waiting: Iterable[Sequence]
) -> None:
    """The costly invariants: every block's count, every sequence's tokens; raises `InvariantError`."""
    holders = list(running)
    for model in models.values():
        model.blocks.check([(s.block_table, s.windows) for s in holders if s.model == model.key])
    for sequence in waiting:
        if sequence.block_table or sequence.windows or sequence.num_computed:
            raise InvariantError(f"scheduler: sequence {sequence.sequence_id} waits but holds blocks")
    for sequence in holders:
        capacity = len(sequence.block_table) * models[sequence.model].blocks.block_size
        if not 0 <= sequence.num_computed <= capacity or sequence.remaining < 1:
            raise InvariantError(f"scheduler: sequence {sequence.sequence_id} has lost count of its tokens")
