"""Random use of two block managers that share a budget, with the blocks' contents simulated.

The content of a slot is a hash of all tokens up to it, as KV depends on all of them: whatever a
table shows at a position must be the hash of the sequence's own tokens.
"""

from dataclasses import dataclass, field
from random import Random

from engine.cache.block_manager import BlockManager
from engine.cache.budget import KVBudget

TOKENS = 3
MAX_LENGTH = 60


def chain(token_ids, before=0):
    """Content of each slot: a hash of the token and all before it."""
    contents = []
    for token in token_ids:
        before = hash((before, token, 17))
        contents.append(before)
    return contents


@dataclass(eq=False)
class Row:
    manager: int
    token_ids: list[int]
    contents: list[int]
    table: list[int] = field(default_factory=list)


class BlockFuzzer:
    """One `step` is one operation of a block manager, then the cheap invariant."""

    def __init__(self, random: Random, num_blocks: int = 80, block_size: int = 4) -> None:
        self.random = random
        self.size = block_size
        self.budget = KVBudget(int(num_blocks * 1.3) * 10)
        self.managers = [
            BlockManager(num_blocks, block_size, 10, self.budget, b"a"),
            BlockManager(num_blocks // 2, block_size, 23, self.budget, b"b", lowest_first=True),
        ]
        self.memory = [[[0] * block_size for _ in range(m.total + 1)] for m in self.managers]
        self.rows: list[Row] = []
        self.hits = self.refusals = 0

    def step(self) -> None:
        action = self.random.random()
        if not self.rows or action < 0.2:
            self.start()
        elif action < 0.65:
            self.grow(self.random.choice(self.rows))
        elif action < 0.75:
            self.fork(self.random.choice(self.rows))
        elif action < 0.97:
            self.stop(self.random.choice(self.rows), discard=False)
        else:
            self.stop(self.random.choice(self.rows), discard=True)
        for manager in self.managers:
            manager.check_counts()

    def check(self) -> None:
        for i, manager in enumerate(self.managers):
            manager.check(row.table for row in self.rows if row.manager == i)

    def start(self) -> None:
        which = self.random.randrange(2)
        manager = self.managers[which]
        count = self.random.randint(1, MAX_LENGTH)
        token_ids = [0 if self.random.random() < 0.9 else self.random.randrange(TOKENS) for _ in range(count)]
        row = Row(which, token_ids, chain(token_ids))
        hit = manager.match(token_ids)[0]
        assert len(hit) * self.size < count
        self.verify(row, hit, len(hit) * self.size)
        need = manager.blocks_for(count) - len(hit)
        fits = manager.fits(need, hit)
        manager.share(hit)
        blocks = manager.allocate(need, hit[-1] if hit else None)
        assert (blocks is not None) == fits
        if blocks is None:
            self.refusals += 1
            manager.release(list(hit))
            return
        self.hits += len(hit)
        row.table = hit + blocks
        self.write(row, len(hit) * self.size, count)
        self.rows.append(row)

    def grow(self, row: Row) -> None:
        manager, start = self.managers[row.manager], len(row.token_ids)
        if start % self.size == 0:
            blocks = manager.allocate(1, row.table[-1])
            if blocks is None:
                self.refusals += 1
                return
            row.table += blocks
        row.token_ids.append(self.random.randrange(TOKENS))
        row.contents += chain(row.token_ids[-1:], row.contents[-1])
        self.write(row, start, start + 1)

    def fork(self, row: Row) -> None:
        """Share the full blocks of a row; what it has in a block that is not full is its own."""
        full = len(row.token_ids) // self.size
        if not full:
            return
        table = row.table[:full]
        self.managers[row.manager].share(table)
        kept = full * self.size
        self.rows.append(Row(row.manager, row.token_ids[:kept], row.contents[:kept], table))

    def stop(self, row: Row, *, discard: bool) -> None:
        self.verify(row, row.table, len(row.token_ids))
        self.rows.remove(row)
        if discard:
            self.managers[row.manager].release(row.table, discard=True)
        else:
            self.managers[row.manager].release(row.table)

    def write(self, row: Row, start: int, end: int) -> None:
        memory, manager = self.memory[row.manager], self.managers[row.manager]
        for position in range(start, end):
            block = row.table[position // self.size]
            assert block != 0 and manager.refs(block) == 1, "a shared block or the scratch block is written"
            memory[block][position % self.size] = row.contents[position]
        manager.commit_full(row.table, row.token_ids, end)

    def verify(self, row: Row, table: list[int], count: int) -> None:
        memory, shown = self.memory[row.manager], []
        for block in table:
            shown += memory[block]
        assert shown[:count] == row.contents[:count], "a table shows another sequence's tokens"
