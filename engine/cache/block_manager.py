"""KV blocks of one model: counted, shared by prefix, kept for hits until the memory is needed.

A block is free (no content), held (its count of references is that of the block tables naming it)
or cached (no table names it, but its tokens are indexed and may be hit). Block 0 is scratch for
padding rows and is never handed out. Tables are append-only: when a sequence fills a block that is
indexed already it keeps its own. It knows numbers, not memory.

Layers that see the newest tokens alone have pages behind the blocks (`engine.cache.window_pages`); a
sequence that shares a prefix needs those of its last tokens.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as Items
from itertools import chain, compress, count

from engine.api.errors import InvariantError
from engine.cache.budget import KVBudget
from engine.cache.free_list import FreeBlocks, FreeRuns, LowestFree
from engine.cache.offload_index import OffloadIndex
from engine.cache.prefix_cache import PrefixCache, PrefixNode
from engine.cache.window_pages import Pages, WindowShape, WindowTable
from engine.cache.windows import Holder, Windows

KVMove = tuple[int, int, int]
"""Pool (0: blocks; from 1 on the pages of windows), block or page there, slot of host memory."""

EVICTION_BATCH = 16
"""Most blocks evicted beyond the need: freed one by one, a tail comes back as runs of one block."""


class BlockManager:
    """Hands out the blocks `1 .. num_blocks - 1`, of `block_size` tokens and `block_bytes` bytes each.

    `salt` names what KV depends on beside the tokens (model, KV dtype, rope choice); a sequence
    with another rope choice passes its own salt to `match` and `commit_full`. `lowest_first`
    keeps the numbers in use low, for memory that can be given back from its end; else blocks of a
    sequence are kept side by side. `windows` are the kinds of layers that see the newest tokens alone,
    `chunk` the most tokens of a sequence that are computed at once.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        block_bytes: int,
        budget: KVBudget,
        salt: bytes = b"",
        *,
        lowest_first: bool = False,
        windows: Items[WindowShape] = (),
        chunk: int = 1,
    ) -> None:
        self.block_size = block_size
        self.block_bytes = block_bytes
        self.budget = budget
        self.total = num_blocks - 1
        self.held = 0
        self._salt = salt
        self._refs = [0] * num_blocks
        self._nodes: list[PrefixNode | None] = [None] * num_blocks
        self._cached: OrderedDict[int, int] = OrderedDict()
        """Block → clock of its release, the least recently used first."""
        self._lowest = LowestFree(1, num_blocks) if lowest_first else None
        self._runs: FreeBlocks = self._lowest or FreeRuns(1, num_blocks)
        self.used = self._runs.used
        """A byte a block: 1 where it is held or cached."""
        self.windows = Windows(windows, block_size, num_blocks, chunk, lowest_first=lowest_first)
        self.index = PrefixCache(block_size)
        self.hosts = [OffloadIndex(self.index, pool) for pool in range(1 + len(windows))]
        """Copies of evicted blocks, and of their pages; without slots until they are grown."""
        self.offloading = False
        """Whether evicted blocks are to be kept in host memory; the caller then asks `take_offloads`."""
        self._offloads: list[KVMove] = []
        self._spare = min(EVICTION_BATCH, num_blocks // 64)
        budget.register(self)

    @property
    def free(self) -> int:
        """Blocks without content."""
        return self._runs.count

    @property
    def cached(self) -> int:
        """Blocks that nobody holds, kept for prefix hits."""
        return len(self._cached)

    @property
    def out_of_numbers(self) -> bool:
        """Whether no block, or no page of a kind, could be taken for want of a number."""
        if not self.free and not self._cached:
            return True
        return any(not kind.free and not kind.idle for kind in self.windows.kinds)

    @property
    def host(self) -> OffloadIndex:
        """Copies of evicted blocks."""
        return self.hosts[0]

    @property
    def num_kept(self) -> list[int]:
        """Blocks held or cached, then pages of each kind: what takes memory."""
        return [self.held + len(self._cached), *(kind.used for kind in self.windows.kinds)]

    @property
    def pool_bytes(self) -> list[int]:
        """Bytes of a block, then of a page of each kind."""
        return [self.block_bytes, *(kind.shape.page_bytes for kind in self.windows.kinds)]

    @property
    def held_bytes(self) -> list[int]:
        """Bytes of the blocks that are held, then of the pages of each kind."""
        held = [self.held, *(kind.live for kind in self.windows.kinds)]
        return [count * size for count, size in zip(held, self.pool_bytes, strict=True)]

    @property
    def hosted_bytes(self) -> int:
        """Bytes of what host memory holds."""
        return sum(host.used * size for host, size in zip(self.hosts, self.pool_bytes, strict=True))

    @property
    def kept_bytes(self) -> int:
        """Bytes of what is held or cached."""
        return sum(count * size for count, size in zip(self.num_kept, self.pool_bytes, strict=True))

    @property
    def cached_bytes(self) -> int:
        """Bytes of what nobody holds."""
        return len(self._cached) * self.block_bytes + self.windows.idle_bytes

    @property
    def highest_used(self) -> list[int]:
        """The highest block that is held or cached, then page of each kind: memory behind is not needed."""
        block = self.total if self._lowest is None else self._lowest.highest_used
        return [block, *(kind.highest_used for kind in self.windows.kinds)]

    @property
    def capacity(self) -> int:
        """Blocks that one sequence could hold if it were alone."""
        room = self.budget.total_bytes
        least, most = 0, min(self.total, room // self.block_bytes)
        while least < most:
            middle = (least + most + 1) // 2
            if self.windows.hold(middle, room - middle * self.block_bytes):
                least = middle
            else:
                most = middle - 1
        return least

    def blocks_for(self, tokens: int) -> int:
        """Blocks that `tokens` tokens need."""
        return -(-tokens // self.block_size)

    def refs(self, block: int) -> int:
        """How many tables name `block`."""
        return self._refs[block]

    def count_shared(self, table: Iterable[int]) -> int:
        """How many blocks of `table` another table names too."""
        return sum(map((1).__lt__, map(self._refs.__getitem__, table)))

    def fits(
        self, n: int, sharing: Items[int] = (), pages: Items[Pages] = (), *, evicting: bool = True
    ) -> bool:
        """Whether `n` blocks and `pages` of each kind could be taken after `share(sharing)`.

        evicting: or else without giving up any block.
        """
        taken = n * self.block_bytes + self.windows.bytes_of(pages)
        if not evicting:
            passed = self.windows.passed_bytes(pages)
            free_bytes = self.budget.total_bytes - self.budget.used_bytes
            return passed is not None and n <= self._runs.count and taken <= free_bytes + passed
        entered = self.windows.entered_bytes(pages, sharing)
        again = sum(not self._refs[block] for block in sharing)
        if entered is None or n + again > self._runs.count + len(self._cached):
            return False
        return taken + again * self.block_bytes + entered <= self.budget.available_bytes

    def match(self, token_ids: Items[int], salt: bytes | None = None) -> tuple[list[int], list[PrefixNode]]:
        """Blocks whose KV is that of the first tokens of `token_ids`, compared token by token.

        And the nodes that follow whose KV is in host memory. Never all of the tokens: at least one is
        left to compute, for its logits. The blocks are not held yet: `share` them before anything else
        is allocated.
        """
        blocks, hosted = self.index.match(token_ids[:-1], self._salt if salt is None else salt)
        length = self.windows.seen_length(blocks, hosted) if self.windows else len(blocks) + len(hosted)
        return blocks[:length], hosted[: max(0, length - len(blocks))]

    def touch(self, blocks: Iterable[int]) -> None:
        """Count the cached ones of `blocks` as used just now: they are evicted last."""
        for block in blocks:
            if block in self._cached:
                self._cached[block] = self.budget.stamp()
                self._cached.move_to_end(block)

    def take_offloads(self) -> list[KVMove]:
        """What is to be copied to host memory, in order, before anything is written; forgets it."""
        offloads, self._offloads = self._offloads, []
        return offloads

    def share(self, blocks: Iterable[int]) -> None:
        """Count one more table naming each of `blocks`, which are held or cached."""
        for block in blocks:
            if not self._refs[block]:
                if self._cached.pop(block, None) is None:
                    raise InvariantError(f"KV block {block} has no content and cannot be shared")
                self.held += 1
                self.windows.shared(block)
            self._refs[block] += 1

    def allocate(self, n: int, after: int | None = None) -> list[int] | None:
        """Take `n` blocks, those following `after` if they are free; None, with nothing changed, if short.

        A new sequence (`after` None) starts in the middle of the longest free run.
        """
        if not self.fits(n):
            return None
        if n > self._runs.count:
            for _ in range(min(n - self._runs.count + self._spare, len(self._cached))):
                self._evict_block()
        if not self.budget.try_reserve(n * self.block_bytes):
            raise InvariantError(f"KV budget: {n} blocks were promised but their bytes are not there")
        blocks = self._runs.take(n, after)
        for block in blocks:
            self._refs[block] = 1
        self.held += n
        return blocks

    def grow(self, table: list[int], windows: Items[WindowTable], tokens: int) -> bool:
        """Extend a table and its windows to hold `tokens` tokens; False, with nothing changed, if short."""
        end = self.blocks_for(tokens)
        pages = self.windows.missing(windows, end)
        n = max(0, end - len(table))
        if n or any(part.take for part in pages):
            if not self.fits(n, (), pages):
                return False
            table += self.allocate(n, table[-1] if table else None) or []
            self.take_pages(table, windows, pages)
        return True

    def take_pages(self, table: list[int], windows: Items[WindowTable], needs: Items[Pages]) -> None:
        """Take pages for the next blocks of `table`; raises `InvariantError` if they do not fit."""
        for kind, own, need in zip(self.windows.kinds, windows, needs, strict=True):
            while kind.free < need.take and kind.passed:
                self.budget.release(kind.drop_passed())
            while kind.free < need.take:
                self._evict_block()
            if not self.budget.try_reserve(need.take * kind.shape.page_bytes):
                raise InvariantError(f"KV budget: {need.take} pages were promised, their bytes are not there")
            kind.give(own, table[len(own.pages) : len(own.pages) + need.take])

    def release(self, table: list[int], windows: Items[WindowTable] = (), *, discard: bool = False) -> None:
        """Stop naming the blocks of `table` and the pages of its `windows`, tail first, and empty them.

        Indexed blocks that nobody names stay cached, the tail being evicted first, while the budget
        holds them. With `discard` they are forgotten: their content cannot be trusted.
        """
        while table:
            block = table.pop()
            if self._refs[block] <= 0:
                raise InvariantError(f"KV block {block} was released more often than it was held")
            self._refs[block] -= 1
            self.windows.leave(windows, len(table), block, held=self._refs[block] > 0)
            if self._refs[block]:
                continue
            self.held -= 1
            node = self._nodes[block]
            if node is not None and node.blocks[0] == block and not discard:
                self._cached[block] = self.budget.stamp()
            else:
                self._free(block)
        for own in windows:
            own.pages, own.first = [], 0
        self.budget.fit()

    def commit_full(
        self, table: Items[int], token_ids: Items[int], num_computed: int, salt: bytes | None = None
    ) -> None:
        """Index the blocks of `table` that `num_computed` tokens have filled, as far as they are not yet."""
        size, full = self.block_size, num_computed // self.block_size
        first = full
        while first and self._nodes[table[first - 1]] is None:
            first -= 1
        if first == full:
            return
        node = self._nodes[table[first - 1]] if first else None
        if node is None:
            node = self.index.root(self._salt if salt is None else salt)
        for i in range(first, full):
            node = self.commit(node, tuple(token_ids[i * size : (i + 1) * size]), table[i])
        self.budget.version += 1

    def commit(self, parent: PrefixNode, tokens: tuple[int, ...], block: int) -> PrefixNode:
        """Index one held block, full of `tokens` after those of `parent`; returns its node."""
        node = self._nodes[block] = self.index.insert(parent, tokens, block)
        if node.blocks[0] != block:
            self._prefer(node, block)
        return node

    def _prefer(self, node: PrefixNode, block: int) -> None:
        """Let `block` serve hits where the one that does has lost pages that it has."""
        old = node.blocks[0]
        if self.windows.better(block, old):
            node.blocks.remove(block)
            node.blocks.insert(0, block)
            if self._cached.pop(old, None) is not None:
                self._free(old)

    def oldest_stamp(self) -> int | None:
        """Clock of the least recently used cached block; 0 where pages that windows have passed go before."""
        if self.windows.passed:
            return 0
        return next(iter(self._cached.values())) if self._cached else None

    def evict_oldest(self) -> None:
        """Forget a page that windows have passed, or else the least recently used cached block."""
        if freed := self.windows.drop_passed():
            self.budget.release(freed)
        else:
            self._evict_block()

    def _evict_block(self) -> None:
        """Forget the least recently used cached block, or keep its KV in host memory."""
        block, _ = self._cached.popitem(last=False)
        node = self._nodes[block]
        if self.offloading and node is not None and node.blocks == [block]:
            pages = [block, *(kind.kept_page(block) for kind in self.windows.kinds)]
            for pool, page in enumerate(pages):
                slot = self.hosts[pool].put(node) if page else None
                if slot is not None:
                    self._offloads.append((pool, page, slot))
        self._free(block)

    def evict_all(self) -> None:
        """Forget everything cached."""
        while self.cached_bytes:
            self.evict_oldest()

    def close(self) -> None:
        """Give all cached bytes back and leave the budget; raise `InvariantError` while blocks are held."""
        if self.held:
            raise InvariantError(f"KV cache: closed while {self.held} blocks are held")
        self.offloading = False
        self.evict_all()
        self.clear_hosts()
        self.budget.unregister(self)

    def clear_hosts(self) -> None:
        """Forget what host memory holds."""
        for host in self.hosts:
            host.clear()

    def check_counts(self) -> None:
        """The cheap invariant: free + cached + held = total, within the budget."""
        if self._runs.count + len(self._cached) + self.held != self.total:
            raise InvariantError(
                f"KV blocks: {self.free} free + {self.cached} cached + {self.held} held is not {self.total}"
            )
        self.budget.check()

    def check(self, holders: Items[Holder]) -> None:
        """The full invariant: counts, and every reference count is that of the holders' tables; O(blocks)."""
        self.check_counts()
        for host in self.hosts:
            host.check()
        self.windows.check(self._refs, self._cached, holders)
        named = Counter(chain.from_iterable(table for table, _ in holders))
        free = set(self._runs)
        if len(free) != self.free or 0 in free or named[0]:
            raise InvariantError("KV blocks: the free runs overlap, or scratch block 0 was handed out")
        blocks = range(1, self.total + 1)
        used = set(blocks).difference(free)
        if self.highest_used[0] < max(used, default=0):
            raise InvariantError(f"KV block {max(used)} is in use, beyond {self.highest_used[0]}")
        # Of a block that is free, unnamed, uncounted, uncached and unindexed there is nothing to look at.
        counted = compress(count(), self._refs)
        indexed = (block for block, node in enumerate(self._nodes) if node is not None)
        for block in sorted(used.union(named, self._cached, counted, indexed).intersection(blocks)):
            self._check_block(block, named[block], block in free)

    def _check_block(self, block: int, named: int, free: bool) -> None:
        node, refs = self._nodes[block], self._refs[block]
        if refs != named:
            raise InvariantError(f"KV block {block}: counted {refs} times, in {named} tables")
        if (refs > 0) + (block in self._cached) + free != 1:
            raise InvariantError(f"KV block {block} is not exactly one of free, cached and held")
        if node is not None and block not in node.blocks:
            raise InvariantError(f"KV block {block} is not where its tokens are indexed")
        if block in self._cached and (node is None or node.blocks[0] != block):
            raise InvariantError(f"KV block {block} is cached but no hit can find it")

    def _free(self, block: int) -> None:
        node = self._nodes[block]
        if node is not None:
            self.index.remove(node, block)
            self._nodes[block] = None
        self._runs.add(block)
        self.budget.release(self.block_bytes + self.windows.drop(block))
