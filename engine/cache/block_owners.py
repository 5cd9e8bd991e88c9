"""Whose KV a block has: the owner named by the request that used it last. It says so of what is only kept."""

from array import array
from collections.abc import Iterable


class BlockOwners:
    """By number of the block; what was never noted, or by nobody, has the owner ""."""

    def __init__(self) -> None:
        self.names: list[str] = [""]
        self._numbers = {"": 0}
        self._owner_of = array("i")

    def note(self, table: Iterable[int], owner: str) -> None:
        """A request of `owner` lets go of the blocks of `table`."""
        blocks = list(table)
        number = self._numbers.setdefault(owner, len(self.names))
        if number == len(self.names):
            self.names.append(owner)
        lacking = max(blocks, default=-1) + 1 - len(self._owner_of)
        if lacking > 0:
            self._owner_of.extend([0] * lacking)
        for block in blocks:
            self._owner_of[block] = number

    def blocks_of(self, owner: str) -> list[int]:
        """The blocks that `owner` used last, whether or not their content is still there."""
        number = self._numbers.get(owner)
        return [] if number is None else [b for b, other in enumerate(self._owner_of) if other == number]

    def tobytes(self, blocks: int) -> bytes:
        """For each of so many blocks the place of its owner in `names`, as 32-bit integers."""
        return (self._owner_of[:blocks] + array("i", [0] * (blocks - len(self._owner_of)))).tobytes()
