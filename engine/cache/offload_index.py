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

    def __init__(self, index: PrefixCache) -> None:
        self._index = index
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
        if node.host is not None:
            self._nodes.move_to_end(node.host)
            return None
        if not self._capacity:
            return None
        if not self._free:
            self._drop(next(iter(self._nodes)))
        slot = self._free.pop()
        node.host = slot
        self._nodes[slot] = node
        return slot

    def use(self, node: PrefixNode) -> int | None:
        """The slot of `node`, used just now; None when it has been given up meanwhile."""
        if node.host is not None:
            self._nodes.move_to_end(node.host)
        return node.host

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
            if node.host != slot:
                raise InvariantError(f"host KV slot {slot} belongs to a node that names slot {node.host}")

    def _drop(self, slot: int) -> None:
        node = self._nodes.pop(slot)
        node.host = None
        self._free.append(slot)
        self._index.prune(node)
