"""The pages of layers that see the newest tokens alone, behind the blocks that are managed.

A sequence's table names blocks; a block's page, in the memory of such layers, is there while some table
has the block in its window, and after that as long as nobody needs the memory. What a window has passed
goes first: a hit that ends there would still need it, but hits end mostly where a sequence ended.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from engine.api.errors import InvariantError
from engine.cache.free_list import FreeBlocks, FreeRuns, LowestFree


@dataclass(frozen=True, slots=True)
class WindowShape:
    """One kind of windowed layers."""

    tokens: int
    """Tokens that a token sees, itself included."""
    num_pages: int
    """Pages that there are, scratch page 0 included."""
    page_bytes: int


@dataclass(slots=True)
class WindowTable:
    """Which pages a sequence has in one kind of windowed layers, beside its block table."""

    pages: list[int] = field(default_factory=list)
    """Of each block from the start; it only grows. Entries before `first` may be anything."""
    first: int = 0
    """The first block whose page is held."""


@dataclass(frozen=True, slots=True)
class Pages:
    """What a sequence needs of one kind of windowed layers."""

    first: int
    """The first block whose page it needs."""
    take: int
    """Pages of its own that it takes."""


class WindowPages:
    """Hands out the pages `1 .. num_pages - 1`. It moves no bytes of the budget: its caller does."""

    def __init__(self, shape: WindowShape, block_size: int, num_blocks: int, *, lowest_first: bool) -> None:
        self.shape = shape
        self.live = 0
        """Pages that a window holds."""
        self._block_size = block_size
        self._total = shape.num_pages - 1
        self._page_of = [0] * num_blocks
        """Block → page; 0: none."""
        self._users = [0] * num_blocks
        """Block → windows that hold its page."""
        self._passed: OrderedDict[int, None] = OrderedDict()
        """Blocks whose page may go before the block does, the longest unused first."""
        self._lowest = LowestFree(1, shape.num_pages) if lowest_first else None
        self._free: FreeBlocks = self._lowest or FreeRuns(1, shape.num_pages)
        self.used_pages = self._free.used
        """A byte a page: 1 where it has content."""

    @property
    def free(self) -> int:
        """Pages without content."""
        return self._free.count

    @property
    def used(self) -> int:
        """Pages with content."""
        return self._total - self._free.count

    @property
    def idle(self) -> int:
        """Pages that are kept for hits alone: passed ones, and those of cached blocks."""
        return self.used - self.live

    @property
    def passed(self) -> int:
        """Pages that may go by themselves."""
        return len(self._passed)

    @property
    def highest_used(self) -> int:
        """The highest page in use: memory behind it is not needed."""
        return self._total if self._lowest is None else self._lowest.highest_used

    def page(self, block: int) -> int:
        """The page of a block; 0: none."""
        return self._page_of[block]

    def is_idle(self, block: int) -> bool:
        """Whether a block has a page that no window holds."""
        return bool(self._page_of[block]) and not self._users[block]

    def kept_page(self, block: int) -> int:
        """The page of a cached block where a sequence ended with it; 0: none."""
        return 0 if block in self._passed else self._page_of[block]

    def first_needed(self, num_computed: int) -> int:
        """The first block that the token behind `num_computed` others sees."""
        return max(0, num_computed - self.shape.tokens + 1) // self._block_size

    def enter(self, table: WindowTable, blocks: Sequence[int], first: int) -> None:
        """Begin a table with blocks of which those from `first` on have their pages."""
        table.first = first
        table.pages = [0] * first
        for block in blocks[first:]:
            page = self._page_of[block]
            if not page:
                raise InvariantError(f"KV block {block} has no page of the last {self.shape.tokens} tokens")
            if not self._users[block]:
                self.live += 1
                self._passed.pop(block, None)
            self._users[block] += 1
            table.pages.append(page)

    def give(self, table: WindowTable, blocks: Sequence[int]) -> None:
        """Take a page for each of `blocks`, which follow those of the table; as many are free."""
        for block, page in zip(blocks, self._free.take(len(blocks), _last(table)), strict=True):
            if self._page_of[block]:
                raise InvariantError(f"KV block {block} has a page of the last {self.shape.tokens} tokens")
            self._page_of[block], self._users[block] = page, 1
            table.pages.append(page)
        self.live += len(blocks)

    def slide(self, table: WindowTable, blocks: Sequence[int], num_computed: int) -> None:
        """Let go of the pages of `blocks`, the sequence's, that its next token does not see."""
        first = min(self.first_needed(num_computed), len(table.pages))
        for block in blocks[table.first : first]:
            self.leave(block, held=True)
        table.first = max(table.first, first)

    def leave(self, block: int, *, held: bool) -> None:
        """One window less holds the page of `block`; held: whether tables still name the block."""
        if self._users[block] <= 0:
            raise InvariantError(f"KV block {block}: its page was released more often than it was held")
        self._users[block] -= 1
        if not self._users[block]:
            self.live -= 1
            if held:
                self._passed[block] = None

    def shared(self, block: int) -> None:
        """Tables name a block again that was cached: its page may go by itself, until a window enters it."""
        if self._page_of[block] and not self._users[block]:
            self._passed[block] = None

    def drop(self, block: int) -> int:
        """Forget the page of a block that no window holds; returns its bytes."""
        page = self._page_of[block]
        if self._users[block]:
            raise InvariantError(f"KV block {block} was given up while a window holds its page")
        if not page:
            return 0
        self._page_of[block] = 0
        self._passed.pop(block, None)
        self._free.add(page)
        return self.shape.page_bytes

    def drop_passed(self) -> int:
        """Forget the page that was passed the longest ago; returns its bytes."""
        return self.drop(next(iter(self._passed)))

    def recount(self, holders: Iterable[tuple[Sequence[int], WindowTable]]) -> None:
        """Count anew who holds which pages: block tables with their window tables."""
        users = self._count(holders)
        for block, page in enumerate(self._page_of):
            if page and self._users[block] and not users[block]:
                self._passed[block] = None
        self._users = users
        self.live = sum(map(bool, users))

    def _count(self, holders: Iterable[tuple[Sequence[int], WindowTable]]) -> list[int]:
        users = [0] * len(self._users)
        for blocks, table in holders:
            for block in blocks[table.first : len(table.pages)]:
                users[block] += 1
        return users

    def check(
        self,
        refs: Sequence[int],
        cached: Iterable[int],
        holders: Iterable[tuple[Sequence[int], WindowTable]],
    ) -> None:
        """The costly invariant: every page is free, held, passed or that of a cached block.

        refs: tables that name each block; holders: these tables with their windows.
        """
        if self._users != self._count(holders):
            raise InvariantError(f"pages of the last {self.shape.tokens} tokens: holders are miscounted")
        pages = [page for page in self._page_of if page]
        if len(set(pages)) != len(pages) or len(pages) != self.used or set(pages) & set(self._free):
            raise InvariantError(f"pages of the last {self.shape.tokens} tokens: some are lost")
        if self.live != sum(map(bool, self._users)):
            raise InvariantError(f"pages of the last {self.shape.tokens} tokens: {self.live} are not held")
        kept = set(cached)
        for block, page in enumerate(self._page_of):
            users, passed = self._users[block], block in self._passed
            if users > refs[block] or (users and not page) or (passed and (users or not page)):
                raise InvariantError(f"KV block {block}: {users} windows hold its page {page}")
            if page and not users and not passed and block not in kept:
                raise InvariantError(f"KV block {block}: nothing can give its page {page} back")


def _last(table: WindowTable) -> int | None:
    return table.pages[-1] if len(table.pages) > table.first else None
