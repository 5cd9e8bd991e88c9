"""What of a sequence's tokens has its KV in blocks already, and the table that it gets at its start."""

from dataclasses import dataclass

from engine.api.errors import InvariantError
from engine.cache.block_manager import BlockManager
from engine.cache.prefix_cache import PrefixNode
from engine.cache.window_pages import Pages
from engine.scheduler.sequence import Sequence


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """The longest prefix of a sequence that is in the cache, in full blocks."""

    blocks: list[int]
    missing: int
    """Blocks to allocate for the other known tokens."""
    hosted: list[PrefixNode]
    """The full blocks that follow and whose KV is in host memory; to be brought back into new ones."""
    pages: list[Pages]
    """What windows take for the first chunk, one of each kind."""


def find_prefix(sequence: Sequence, blocks: BlockManager) -> PrefixHit:
    """Look up the known tokens of `sequence`."""
    table, hosted = blocks.match(sequence.token_ids)
    total = blocks.blocks_for(sequence.num_target)
    pages = blocks.windows.needs(len(table), len(table) + len(hosted), total)
    return PrefixHit(table, total - len(table), hosted, pages)


def take_blocks(sequence: Sequence, hit: PrefixHit, blocks: BlockManager) -> None:
    """Give `sequence` a table for all known tokens, the blocks of the hit shared with whoever has them.

    Needs `blocks.fits(hit.missing, hit.blocks, hit.pages)`; raises `InvariantError` otherwise.
    """
    blocks.share(hit.blocks)
    sequence.windows = blocks.windows.begin(hit.blocks, hit.pages)
    grown = blocks.allocate(hit.missing, hit.blocks[-1] if hit.blocks else None)
    if grown is None:
        raise InvariantError(
            f"scheduler: no blocks for sequence {sequence.sequence_id}, which was said to fit"
        )
    sequence.block_table = hit.blocks + grown
    blocks.take_pages(sequence.block_table, sequence.windows, hit.pages)
    sequence.num_computed = len(hit.blocks) * blocks.block_size
    sequence.reloads = hit.hosted


def give_back(sequence: Sequence, blocks: BlockManager, *, discard: bool = False) -> None:
    """Let go of the blocks of `sequence`, which stay known as its owner's; discard: with their content."""
    blocks.index.owners.note(sequence.block_table, sequence.request.owner)
    blocks.release(sequence.block_table, sequence.windows, discard=discard)
    sequence.windows = []
