"""One byte budget for the KV of all resident models.

Every model has block numbers and block bytes of its own; what they share is memory. When it is
short, the least recently used cached block of any model goes first. Not thread-safe: only the
engine's thread uses it.
"""

from typing import Protocol

from engine.api.errors import InvariantError


class CacheOwner(Protocol):
    """What the budget asks of a block manager."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of what is held or cached."""

    @property
    def cached_bytes(self) -> int:
        """Bytes of what nobody holds but that is kept for prefix hits."""

    def oldest_stamp(self) -> int | None:
        """Clock at which the least recently used of that was released; 0 for what goes before all else."""

    def evict_oldest(self) -> None:
        """Give that up and release its bytes."""


class KVBudget:
    """Counts the bytes of held and cached blocks; evicts cached ones when short."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = 0
        """Held and cached blocks together."""
        self.version = 0
        """Changes whenever a block is released, evicted or indexed: an admission that failed is
        worth trying again only then."""
        self._clock = 0
        self._owners: list[CacheOwner] = []

    @property
    def cached_bytes(self) -> int:
        """Bytes that could be evicted now."""
        return sum(owner.cached_bytes for owner in self._owners)

    @property
    def available_bytes(self) -> int:
        """Bytes that `try_reserve` could get now, evicting what is cached."""
        return self.total_bytes - self.used_bytes + self.cached_bytes

    def register(self, owner: CacheOwner) -> None:
        """Let `owner` take part in eviction."""
        self._owners.append(owner)

    def unregister(self, owner: CacheOwner) -> None:
        """Forget an owner that has no blocks left."""
        self._owners.remove(owner)

    def stamp(self) -> int:
        """The next time of the clock that orders cached blocks of all models."""
        self._clock += 1
        self.version += 1
        return self._clock

    def try_reserve(self, num_bytes: int) -> bool:
        """Take `num_bytes`, evicting if need be; False, with nothing changed, if they are not there."""
        if self.used_bytes + num_bytes > self.total_bytes:
            if num_bytes > self.available_bytes:
                return False
            while self.used_bytes + num_bytes > self.total_bytes:
                self.evict_oldest()
        self.used_bytes += num_bytes
        return True

    def release(self, num_bytes: int) -> None:
        """Give `num_bytes` back; raise `InvariantError` when more comes back than was taken."""
        self.used_bytes -= num_bytes
        self.version += 1
        if self.used_bytes < 0:
            raise InvariantError(f"KV budget: {-self.used_bytes} bytes more were released than taken")

    def set_total(self, total_bytes: int) -> None:
        """Change the budget: cached blocks go as far as needed, held ones when they are released."""
        self.total_bytes = total_bytes
        self.version += 1
        self.fit()

    def fit(self) -> bool:
        """Evict what is cached beyond the budget; False where what is held alone goes beyond it."""
        while self.used_bytes > self.total_bytes and self.cached_bytes:
            self.evict_oldest()
        return self.used_bytes <= self.total_bytes

    def check(self) -> None:
        """Raise `InvariantError` unless the bytes are those of the owners' blocks."""
        kept = sum(owner.kept_bytes for owner in self._owners)
        if kept != self.used_bytes or kept > self.total_bytes:
            raise InvariantError(
                f"KV budget: blocks hold {kept} bytes, counted are {self.used_bytes} of {self.total_bytes}"
            )

    def evict_oldest(self) -> None:
        """Give up the least recently used cached block of all models; `InvariantError` if there is none."""
        oldest: CacheOwner | None = None
        least = 0
        for owner in self._owners:
            stamp = owner.oldest_stamp()
            if stamp is not None and (oldest is None or stamp < least):
                oldest, least = owner, stamp
        if oldest is None:
            raise InvariantError("KV budget: bytes are short although cached blocks were counted")
        oldest.evict_oldest()
