"""Block tables are looked at before a pass reads and writes through them.

A wrong page id would let one sequence read another's tokens or overwrite them. Always checked: every
entry is a block of the model, and a block that is written is nobody else's. Thorough checks (the debug
mode) keep a canary for every slot, a hash of all tokens up to the one whose KV was written there, and
compare it with the tokens of the sequence that is about to read it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from engine.cache.block_manager import BlockManager
from engine.scheduler.plan import KVMoves, ModelBatch
from engine.scheduler.sequence import Sequence

_KEPT_CHAINS = 256


class BlockTableCheck:
    """Checks the tables of one model's sequences against its blocks."""

    def __init__(self, blocks: BlockManager, *, thorough: bool) -> None:
        self._blocks = blocks
        self._thorough = thorough
        self._writers: dict[int, tuple[int, int]] = {}
        """Block → (the sequence that last wrote to it, its index in that one's table)."""
        self._written: dict[int, list[int | None]] = {}
        """Canaries by block, one per slot."""
        self._hosted: dict[int, list[int | None]] = {}
        """The same by slot of host memory."""
        self._chains: dict[int, list[int]] = {}
        """Hashes of a sequence's tokens, by sequence id."""
        self._starts: list[tuple[Sequence, int]] = []
        """Sequences of the pass being run and how much of each was computed before it."""

    def faults(self, batch: ModelBatch, alive: Mapping[int, Sequence]) -> dict[int, str]:
        """A cause for every sequence of a batch whose table must not be used; call before its pass.

        alive: all live sequences by id.
        """
        if self._thorough:
            self._starts = [(sequence, sequence.num_computed) for sequence in batch.sequences]
        spans = [(s, s.num_computed, s.num_target + batch.num_draft(s)) for s in batch.decode]
        spans += [(chunk.sequence, chunk.start, chunk.end) for chunk in batch.prefill]
        found = {}
        for sequence, start, end in spans:
            fault = self._fault(sequence, start, end, alive)
            if fault:
                found[sequence.sequence_id] = f"{fault}; its KV cannot be trusted. Send the message again"
        return found

    def computed(self) -> None:
        """Note what the pass has written; call after its commit, before anything else changes."""
        alive = [(sequence, start) for sequence, start in self._starts if not sequence.finished]
        for sequence, start in alive:
            self._note(sequence, start, min(sequence.num_computed, sequence.num_target))
        self._starts = [(sequence, sequence.num_computed) for sequence, _ in alive]

    def moved(self, moves: KVMoves) -> None:
        """Note copies to host memory and back."""
        if self._thorough:
            for pool, block, slot in moves.offloads:
                if pool == 0:
                    self._hosted[slot] = list(self._slots(block))
            for pool, block, slot in moves.reloads:
                if pool == 0:
                    self._written[block] = list(self._hosted[slot])

    def restored(self, block: int, token_ids: Iterable[int]) -> None:
        """Note a block that came from a file, with the KV of the last ones of `token_ids`."""
        if self._thorough:
            value, chain = 0, []
            for token in token_ids:
                value = hash((value, token))
                chain.append(value)
            self._written[block] = list(chain[-self._blocks.block_size :])

    def _fault(self, sequence: Sequence, start: int, end: int, alive: Mapping[int, Sequence]) -> str | None:
        table, size = sequence.block_table, self._blocks.block_size
        if not table or len(table) * size < end:
            return f"its block table has {len(table)} KV blocks for {end} tokens"
        if min(table) < 1 or max(table) > self._blocks.total:
            wrong = next(block for block in table if not 1 <= block <= self._blocks.total)
            return f"its block table names KV block {wrong}, which is none of 1 to {self._blocks.total}"
        wrong_page = self._wrong_page(sequence, start, self._blocks.blocks_for(end))
        if wrong_page:
            return wrong_page
        for index in range(start // size, self._blocks.blocks_for(end)):
            block = table[index]
            if self._blocks.refs(block) != 1:
                count = self._blocks.refs(block)
                return f"it would write to KV block {block}, which {count} block tables hold"
            writer, place = self._writers.get(block, (0, 0))
            owner = alive.get(writer)
            if (
                owner is not None
                and owner is not sequence
                and owner.block_table[place : place + 1] == [block]
            ):
                return f"it would write to KV block {block}, which sequence {writer} writes to"
            self._writers[block] = (sequence.sequence_id, index)
        return self._canary(sequence, start) if self._thorough else None

    def _wrong_page(self, sequence: Sequence, start: int, end: int) -> str | None:
        """Windows must have the pages of all blocks that tokens from `start` on see, up to block `end`."""
        for kind, own in zip(self._blocks.windows.kinds, sequence.windows, strict=True):
            first = kind.first_needed(start)
            if own.first > first or len(own.pages) < end:
                have = f"{own.first} to {len(own.pages)}"
                return f"its window has the pages of blocks {have}, not of {first} to {end}"
            pages = [kind.page(block) for block in sequence.block_table[first:end]]
            if own.pages[first:end] != pages or not all(pages):
                return f"its window names pages that are not those of its blocks {first} to {end}"
        return None

    def _canary(self, sequence: Sequence, count: int) -> str | None:
        """Compare the blocks of the first `count` tokens with the tokens themselves."""
        size, chain = self._blocks.block_size, self._chain(sequence)
        for index, block in enumerate(sequence.block_table):
            first = index * size
            last = min(first + size, count)
            if first >= count:
                return None if self._blocks.refs(block) else f"nobody holds KV block {block} of its table"
            slots = self._slots(block)[: last - first]
            if not self._blocks.refs(block) or slots != chain[first:last]:
                what = "was never written" if None in slots else "holds other tokens"
                return f"its tokens {first} to {last - 1} should be in KV block {block}, which {what}"
        return None

    def _note(self, sequence: Sequence, start: int, end: int) -> None:
        size, chain = self._blocks.block_size, self._chain(sequence)
        for position in range(start, min(end, len(sequence.block_table) * size)):
            block = sequence.block_table[position // size]
            self._slots(block)[position % size] = chain[position]

    def _slots(self, block: int) -> list[int | None]:
        return self._written.setdefault(block, [None] * self._blocks.block_size)

    def _chain(self, sequence: Sequence) -> list[int]:
        if len(self._chains) > _KEPT_CHAINS:
            self._chains.clear()
        chain = self._chains.setdefault(sequence.sequence_id, [])
        value = chain[-1] if chain else 0
        for token in sequence.token_ids[len(chain) :]:
            value = hash((value, token))
            chain.append(value)
        return chain


def mend_tables(victims: list[Sequence], others: Iterable[Sequence], blocks: BlockManager) -> None:
    """Give victims, whose tables are wrong, what they hold by the counts, so that they can be released.

    What the tables of `others`, the model's other sequences, do not account for was taken by the victims.
    """
    named = Counter(block for sequence in others for block in sequence.block_table)
    taken = [block for block in range(1, blocks.total + 1) for _ in range(blocks.refs(block) - named[block])]
    for index, sequence in enumerate(victims):
        sequence.block_table[:] = taken[index :: len(victims)]
        sequence.windows = []
    blocks.windows.recount((sequence.block_table, sequence.windows) for sequence in others)
