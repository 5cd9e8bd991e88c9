"""Which evicted KV blocks have a copy in host memory: numbers only, the least recently used go first.

The device's blocks are the cache of what is computed; this is the cache behind it. A block that is
evicted is copied to a slot of host memory where that is quicker to bring back than to compute again,
and stays findable under its tokens.
"""

from collections import OrderedDict

from engine.api.errors import InvariantError
from engine.cache.prefix_cache import PrefixCache, PrefixNode


class OffloadIndex:
    """Slots `0 .. capacity - 1` of one model's host memory and the nodes whose KV they hold."""

    def __init__(self, index: PrefixCache, pool: int = 0) -> None:
        """pool: which part of a block's KV the slots hold, as in `PrefixNode.hosts`."""
        self._index = index
        self._pool = pool
        self._capacity = 0
        self._free: list[int] = []
        self._nodes: OrderedDict[int, PrefixNode] = OrderedDict()
        """Slot → node, the least recently used first."""

    @property
    def capacity(self) -> int:
        """Slots that exist."""
        return self._capacity

    @property
    def used(self) -> int:
        """Slots that hold KV."""
        return len(self._nodes)

    def grow(self, capacity: int) -> None:
        """Use slots up to `capacity`; never fewer than before."""
        self._free += range(self._capacity, capacity)
        self._capacity = max(self._capacity, capacity)

    def put(self, node: PrefixNode) -> int | None:
        """A slot that the KV of `node` must be copied to now; None when it has one, or none exist."""
        if self._pool in node.hosts:
            self._nodes.move_to_end(node.hosts[self._pool])
            return None
        if not self._capacity:
            return None
        if not self._free:
            self._drop(next(iter(self._nodes)))
        slot = self._free.pop()
        node.hosts[self._pool] = slot
        self._nodes[slot] = node
        return slot

    def use(self, node: PrefixNode) -> int | None:
        """The slot of `node`, used just now; None when it has been given up meanwhile."""
        slot = node.hosts.get(self._pool)
        if slot is not None:
            self._nodes.move_to_end(slot)
        return slot

    def clear(self) -> None:
        """Forget everything: what the slots hold cannot be trusted or is not needed any more."""
        while self._nodes:
            self._drop(next(iter(self._nodes)))

    def check(self) -> None:
        """Raise `InvariantError` unless every slot is free or holds exactly one node's KV."""
        if len(self._free) + len(self._nodes) != self._capacity or set(self._free) & self._nodes.keys():
            raise InvariantError(
                f"host KV: {len(self._free)} free + {len(self._nodes)} used is not {self._capacity}"
            )
        for slot, node in self._nodes.items():
            if node.hosts.get(self._pool) != slot:
                raise InvariantError(f"host KV slot {slot} belongs to a node that names others: {node.hosts}")

    def _drop(self, slot: int) -> None:
        node = self._nodes.pop(slot)
        del node.hosts[self._pool]
        self._free.append(slot)
        self._index.prune(node)
