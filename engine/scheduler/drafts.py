"""Guesses behind decode rows: their room in KV blocks, and taking over those that came true."""

from collections.abc import Mapping

from engine.cache.block_manager import BlockManager, InvariantError
from engine.scheduler.plan import ModelBatch
from engine.scheduler.sequence import Sequence


def take_room(sequence: Sequence, guesses: int, blocks: BlockManager, running: int) -> int:
    """How many of `guesses` may stand behind a decode row; takes the blocks that they are written to.

    A pass may give one token more than its guesses. Blocks are taken only where each of the `running`
    sequences would still find one.
    """
    guesses = min(guesses, sequence.limit - sequence.num_target - 1)
    missing = blocks.blocks_for(sequence.num_target + guesses) - len(sequence.block_table)
    # With host memory behind them, blocks are evicted between ticks only.
    if missing > 0 and blocks.fits(missing + running, evicting=not blocks.host.capacity):
        sequence.block_table += blocks.allocate(missing, sequence.block_table[-1]) or []
    return max(0, min(guesses, len(sequence.block_table) * blocks.block_size - sequence.num_target))


def take_over(batch: ModelBatch, sequence: Sequence, confirmed: Mapping[int, list[int]]) -> int:
    """Append the guesses that came true, whose KV is there; returns how many."""
    guesses = confirmed.get(sequence.sequence_id, [])
    draft = batch.drafts.get(sequence.sequence_id, [])
    if guesses != draft[: len(guesses)]:
        raise InvariantError(f"scheduler: what was confirmed was not guessed: {guesses} of {draft}")
    sequence.token_ids += guesses
    sequence.drafted += len(draft)
    sequence.accepted += len(guesses)
    return len(guesses)
