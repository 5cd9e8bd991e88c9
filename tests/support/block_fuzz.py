"""Random use of two block managers that share a budget, with the blocks' contents simulated.

The content of a slot is a hash of all tokens up to it, as KV depends on all of them: whatever a
table shows at a position must be the hash of the sequence's own tokens. One of the managers has windows:
what their pages show of the last tokens must be that too.
"""

from dataclasses import dataclass, field
from random import Random

from engine.cache.block_manager import BlockManager
from engine.cache.budget import KVBudget
from engine.cache.window_pages import WindowShape, WindowTable

TOKENS = 3
MAX_LENGTH = 60
CHUNK = 9
WINDOWS = (5, 14)
"""Tokens that the layers of one manager see."""


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
    windows: list[WindowTable] = field(default_factory=list)


class BlockFuzzer:
    """One `step` is one operation of a block manager, then the cheap invariant."""

    def __init__(self, random: Random, num_blocks: int = 80, block_size: int = 4) -> None:
        self.random = random
        self.size = block_size
        self.budget = KVBudget(int(num_blocks * 1.3) * 10)
        shapes = [WindowShape(tokens, max(2, num_blocks * 3 // 4), 4 + tokens) for tokens in WINDOWS]
        self.managers = [
            BlockManager(num_blocks, block_size, 10, self.budget, b"a", windows=shapes, chunk=CHUNK),
            BlockManager(num_blocks // 2, block_size, 23, self.budget, b"b", lowest_first=True),
        ]
        self.memory = [[[0] * block_size for _ in range(m.total + 1)] for m in self.managers]
        self.pages = [[[0] * block_size for _ in range(shape.num_pages)] for shape in shapes]
        """What the pages of the first manager's windows hold."""
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
            manager.check([(row.table, row.windows) for row in self.rows if row.manager == i])

    def start(self) -> None:
        which = self.random.randrange(2)
        manager = self.managers[which]
        count = self.random.randint(1, MAX_LENGTH)
        token_ids = [0 if self.random.random() < 0.9 else self.random.randrange(TOKENS) for _ in range(count)]
        row = Row(which, token_ids, chain(token_ids))
        hit = manager.match(token_ids)[0]
        assert len(hit) * self.size < count
        self.verify(row, hit, len(hit) * self.size)
        total = manager.blocks_for(count)
        pages = manager.windows.needs(len(hit), len(hit), total)
        fits = manager.fits(total - len(hit), hit, pages)
        if not fits:
            self.refusals += 1
            return
        manager.share(hit)
        row.windows = manager.windows.begin(hit, pages)
        row.table = hit + (manager.allocate(total - len(hit), hit[-1] if hit else None) or [])
        assert len(row.table) == total, "blocks were promised"
        manager.take_pages(row.table, row.windows, pages)
        self.hits += len(hit)
        self.rows.append(row)
        self.read(row, len(hit) * self.size, count)

    def read(self, row: Row, start: int, count: int) -> None:
        """Chunk by chunk; a chunk that finds no pages ends the row."""
        manager = self.managers[row.manager]
        while start < count:
            end = min(count, start + self.random.randint(1, CHUNK))
            manager.windows.slide(row.table, row.windows, start)
            self.verify(row, row.table, start)
            if not manager.grow(row.table, row.windows, end):
                self.refusals += 1
                del row.token_ids[start:], row.contents[start:]
                self.stop(row, discard=False)
                return
            self.write(row, start, end)
            start = end

    def grow(self, row: Row) -> None:
        manager, start = self.managers[row.manager], len(row.token_ids)
        manager.windows.slide(row.table, row.windows, start)
        if not manager.grow(row.table, row.windows, start + 1):
            self.refusals += 1
            return
        row.token_ids.append(self.random.randrange(TOKENS))
        row.contents += chain(row.token_ids[-1:], row.contents[-1])
        self.write(row, start, start + 1)

    def fork(self, row: Row) -> None:
        """Share the full blocks of a row; what it has in a block that is not full is its own."""
        full = len(row.token_ids) // self.size
        if not full:
            return
        table, manager = row.table[:full], self.managers[row.manager]
        if manager.windows.seen_length(table, []) < full:
            return
        manager.share(table)
        windows = manager.windows.begin(table, manager.windows.needs(full, full, full))
        kept = full * self.size
        self.rows.append(Row(row.manager, row.token_ids[:kept], row.contents[:kept], table, windows))

    def stop(self, row: Row, *, discard: bool) -> None:
        self.verify(row, row.table, len(row.token_ids))
        self.rows.remove(row)
        if discard:
            self.managers[row.manager].release(row.table, row.windows, discard=True)
        else:
            self.managers[row.manager].release(row.table, row.windows)

    def write(self, row: Row, start: int, end: int) -> None:
        memory, manager = self.memory[row.manager], self.managers[row.manager]
        for position in range(start, end):
            block = row.table[position // self.size]
            assert block != 0 and manager.refs(block) == 1, "a shared block or the scratch block is written"
            memory[block][position % self.size] = row.contents[position]
            for pages, window in zip(self.pages, row.windows, strict=False):
                page = window.pages[position // self.size]
                assert page and position // self.size >= window.first, "a page that is not held is written"
                pages[page][position % self.size] = row.contents[position]
        manager.commit_full(row.table, row.token_ids, end)

    def verify(self, row: Row, table: list[int], count: int) -> None:
        memory, shown = self.memory[row.manager], []
        for block in table:
            shown += memory[block]
        assert shown[:count] == row.contents[:count], "a table shows another sequence's tokens"
        for pages, window, tokens in zip(self.pages, row.windows, WINDOWS, strict=False):
            for position in range(max(0, count - tokens + 1), count):
                page = window.pages[position // self.size]
                seen = pages[page][position % self.size]
                assert page and seen == row.contents[position], "a window shows another sequence's tokens"
