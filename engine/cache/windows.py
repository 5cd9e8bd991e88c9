"""All kinds of windowed layers of a model together: what a block manager keeps beside its blocks."""

from collections.abc import Iterable, Sequence

from engine.cache.prefix_cache import PrefixNode
from engine.cache.window_pages import Pages, WindowPages, WindowShape, WindowTable

Holder = tuple[Sequence[int], Sequence[WindowTable]]
"""A sequence's block table and its windows, one of each kind."""


class Windows:
    """Pages of each kind, in the order of the shapes; empty where all layers see everything.

    It moves no bytes of the budget: methods say how many they free or need.
    """

    def __init__(
        self,
        shapes: Sequence[WindowShape],
        block_size: int,
        num_blocks: int,
        chunk: int,
        *,
        lowest_first: bool,
    ) -> None:
        """chunk: the most tokens of a sequence that are computed at once."""
        self.kinds = [
            WindowPages(shape, block_size, num_blocks, lowest_first=lowest_first) for shape in shapes
        ]
        self.most = [-(-(shape.tokens - 1 + chunk) // block_size) + 1 for shape in shapes]
        """Most blocks of a sequence that have a page of each kind at once."""
        self._block_size = block_size

    def __bool__(self) -> bool:
        return bool(self.kinds)

    @property
    def idle_bytes(self) -> int:
        """Bytes of what no window holds."""
        return sum(kind.idle * kind.shape.page_bytes for kind in self.kinds)

    @property
    def passed(self) -> bool:
        """Whether there are pages that go before any block."""
        return any(kind.passed for kind in self.kinds)

    def hold(self, blocks: int, room: int) -> bool:
        """Whether a sequence of so many blocks, alone, finds its pages in `room` bytes."""
        pages = [(kind.shape, min(blocks, most)) for kind, most in zip(self.kinds, self.most, strict=True)]
        enough = all(count < shape.num_pages for shape, count in pages)
        return enough and sum(count * shape.page_bytes for shape, count in pages) <= room

    def bytes_alone(self, blocks: int) -> int:
        """Most bytes of the pages of a sequence of so many blocks."""
        counts = zip(self.kinds, self.most, strict=True)
        return sum(min(blocks, most) * kind.shape.page_bytes for kind, most in counts)

    def bytes_of(self, needs: Sequence[Pages]) -> int:
        """Bytes of the pages that would be taken."""
        return sum(need.take * kind.shape.page_bytes for kind, need in zip(self.kinds, needs, strict=False))

    def entered_bytes(self, needs: Sequence[Pages], sharing: Sequence[int]) -> int | None:
        """Bytes of kept pages that would be held again beside those taken; None if pages are too few."""
        total = 0
        for kind, need in zip(self.kinds, needs, strict=False):
            idle = sum(map(kind.is_idle, sharing[need.first :]))
            if need.take + idle > kind.free + kind.idle:
                return None
            total += idle * kind.shape.page_bytes
        return total

    def passed_bytes(self, needs: Sequence[Pages]) -> int | None:
        """Bytes that passed pages hold; None if too few pages are free or passed."""
        if any(need.take > kind.free + kind.passed for kind, need in zip(self.kinds, needs, strict=False)):
            return None
        return sum(kind.passed * kind.shape.page_bytes for kind in self.kinds)

    def seen_length(self, blocks: Sequence[int], hosted: Sequence[PrefixNode]) -> int:
        """Blocks of the longest prefix whose last ones have their pages, on the device or in host memory."""
        runs, longest = [0] * len(self.kinds), 0
        for index in range(len(blocks) + len(hosted)):
            fits, tokens = True, (index + 1) * self._block_size
            for number, kind in enumerate(self.kinds):
                if index < len(blocks):
                    there = bool(kind.page(blocks[index]))
                else:
                    there = number + 1 in hosted[index - len(blocks)].hosts
                runs[number] = runs[number] + 1 if there else 0
                fits = fits and runs[number] > index - kind.first_needed(tokens)
            longest = index + 1 if fits else longest
        return longest

    def needs(self, shared: int, known: int, blocks: int) -> list[Pages]:
        """What a new sequence takes that shares `shared` blocks and knows the KV of `known` of `blocks`."""
        found = []
        for kind, most in zip(self.kinds, self.most, strict=True):
            first = kind.first_needed(known * self._block_size)
            found.append(Pages(first, max(0, min(blocks, first + most) - max(first, shared))))
        return found

    def missing(self, tables: Sequence[WindowTable], blocks: int) -> list[Pages]:
        """What windows lack until they have the pages of so many blocks."""
        return [Pages(len(table.pages), max(0, blocks - len(table.pages))) for table in tables]

    def begin(self, shared: Sequence[int], needs: Sequence[Pages]) -> list[WindowTable]:
        """The windows of a sequence whose table begins with blocks that it shares."""
        tables = [WindowTable() for _ in self.kinds]
        for kind, table, need in zip(self.kinds, tables, needs, strict=True):
            kind.enter(table, shared, need.first)
        return tables

    def slide(self, table: Sequence[int], tables: Sequence[WindowTable], num_computed: int) -> None:
        """Let go of the pages that the token behind `num_computed` others does not see."""
        for kind, own in zip(self.kinds, tables, strict=True):
            kind.slide(own, table, num_computed)

    def leave(self, tables: Sequence[WindowTable], index: int, block: int, *, held: bool) -> None:
        """A sequence lets go of `block`, number `index` of its table; held: whether others name it."""
        for kind, own in zip(self.kinds, tables, strict=False):
            if own.first <= index < len(own.pages):
                kind.leave(block, held=held)

    def shared(self, block: int) -> None:
        """Tables name a cached block again."""
        for kind in self.kinds:
            kind.shared(block)

    def drop(self, block: int) -> int:
        """Forget the pages of a block; returns their bytes."""
        return sum(kind.drop(block) for kind in self.kinds)

    def drop_passed(self) -> int:
        """Forget a page that was passed; returns its bytes, 0 if there is none."""
        return next((kind.drop_passed() for kind in self.kinds if kind.passed), 0)

    def better(self, block: int, other: int) -> bool:
        """Whether `block` has a page that `other`, of the same tokens, has lost."""
        return any(kind.page(block) and not kind.page(other) for kind in self.kinds)

    def recount(self, holders: Iterable[Holder]) -> None:
        """Count anew who holds which pages."""
        known = list(holders)
        for number, kind in enumerate(self.kinds):
            kind.recount([(table, own[number]) for table, own in known])

    def check(self, refs: Sequence[int], cached: Iterable[int], holders: Sequence[Holder]) -> None:
        """The costly invariants of every kind."""
        for number, kind in enumerate(self.kinds):
            kind.check(refs, cached, [(table, own[number]) for table, own in holders])
