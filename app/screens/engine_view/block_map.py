"""Which chat holds which KV block, and how many blocks a dot of the map stands for. No widget."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine import KVPool

NOBODY = -1


@dataclass(frozen=True, slots=True)
class DotLayout:
    """How blocks become dots: `per_dot` blocks each, from left to right and from the top."""

    width: int
    rows: int
    per_dot: int
    first_row: int
    """Of all rows of dots, the first that is seen."""

    def dot_of(self, block: int) -> tuple[int, int]:
        """Return (row, column) where a block is seen; the row may be outside of what is."""
        row, column = divmod((block - 1) // self.per_dot, self.width)
        return row - self.first_row, column

    def block_at(self, row: int, column: int) -> int:
        """Return the first block of a dot that is seen."""
        return ((row + self.first_row) * self.width + column) * self.per_dot + 1


def lay_out(blocks: int, width: int, rows: int, zoom: int, cursor: int) -> DotLayout:
    """Fit all blocks into the rows, or half as many for each step of `zoom`, the cursor in sight."""
    width, rows = max(1, width), max(1, rows)
    per_dot = max(1, -(-blocks // (width * rows)) >> zoom)
    all_rows = -(-blocks // (width * per_dot))
    row = (cursor - 1) // per_dot // width
    first = min(max(0, row - rows // 2), max(0, all_rows - rows))
    return DotLayout(width, rows, per_dot, first)


def zoom_steps(blocks: int, width: int, rows: int) -> int:
    """Return how often the map can be zoomed in until a dot is a block."""
    return (-(-blocks // (max(1, width) * max(1, rows)))).bit_length() - 1 if blocks else 0


class BlockMap:
    """A pool's blocks, from 1 to `size`, and the sequences that hold them."""

    def __init__(self, pool: KVPool) -> None:
        self.pool = pool
        self.sequences = [holding.sequence_id for holding in pool.holdings]
        self._tables = [np.frombuffer(holding.blocks, np.int32) for holding in pool.holdings]
        self._used = np.frombuffer(pool.used, np.uint8)
        self._holders = np.zeros(len(self._used), np.int32)
        self._owner = np.full(len(self._used), NOBODY, np.int32)
        self._kept = np.zeros(len(self._used), np.int32)
        """For each block that is only kept the number of its owner; 0: nobody's."""
        if pool.owner_of:
            self._kept[:] = np.frombuffer(pool.owner_of, np.int32) * self._used
        for index in reversed(range(len(self._tables))):
            self._holders[self._tables[index]] += 1
            self._owner[self._tables[index]] = index
            self._kept[self._tables[index]] = 0

    @property
    def size(self) -> int:
        """How many blocks there are."""
        return len(self._used) - 1

    def dots(self, layout: DotLayout) -> tuple[NDArray[np.int32], NDArray[np.bool_], NDArray[np.bool_]]:
        """Return for each dot that is seen: who holds its first held block, shared or not, any use at all.

        The first is an index of `sequences` or `NOBODY`. What lies behind the last block is left out.
        """
        start = layout.first_row * layout.width * layout.per_dot + 1
        end = min(start + layout.rows * layout.width * layout.per_dot, self.size + 1)
        short = -(end - start) % layout.per_dot
        shape = -1, layout.per_dot
        owner = np.pad(self._owner[start:end], (0, short), constant_values=NOBODY).reshape(shape)
        holders = np.pad(self._holders[start:end], (0, short)).reshape(shape)
        used = np.pad(self._used[start:end], (0, short)).reshape(shape)
        held = holders > 0
        first = np.take_along_axis(owner, held.argmax(axis=1)[:, None], axis=1)[:, 0]
        shared = np.greater(2 * (holders > 1).sum(axis=1), held.sum(axis=1))
        return first, shared, np.any(used, axis=1)

    def owner_of(self, first: int, count: int) -> int | None:
        """Return the sequence that holds the first held one of some blocks."""
        part = self._owner[first : first + count]
        held = part[part != NOBODY]
        return self.sequences[held[0]] if len(held) else None

    def kept_of(self, first: int, count: int) -> Counter[str]:
        """Return how many of some blocks are kept of each owner that is known."""
        numbers = Counter(self._kept[first : first + count].tolist())
        return Counter({self.pool.owners[number]: found for number, found in numbers.items() if number})

    def held_by(self, first: int, count: int) -> Counter[int]:
        """Return how many of some blocks each sequence holds; shared ones count for each."""
        found: Counter[int] = Counter()
        for sequence_id, table in zip(self.sequences, self._tables, strict=True):
            number = int(((table >= first) & (table < first + count)).sum())
            if number:
                found[sequence_id] = number
        return found

    def counts(self, first: int, count: int) -> tuple[int, int, int]:
        """Return how many of some blocks are shared, only kept, and free."""
        held = self._holders[first : first + count]
        used = self._used[first : first + count]
        kept = int(used.sum()) - int((held > 0).sum())
        return int((held > 1).sum()), kept, len(used) - int(used.sum())

    def place_of(self, sequence_id: int, block: int) -> int | None:
        """Return which block of a sequence's tokens this one is; None where that is not known."""
        if self.pool.window or sequence_id not in self.sequences:
            return None
        found = np.flatnonzero(self._tables[self.sequences.index(sequence_id)] == block)
        return int(found[0]) if len(found) else None

    def next_owner(self, block: int) -> int | None:
        """Return the first block of the next run behind `block`, of a sequence or an owner, round the end."""
        owners = np.where(self._kept > 0, len(self.sequences) + self._kept, self._owner)
        begins = np.flatnonzero((owners[1:] != owners[:-1]) & (owners[1:] != NOBODY)) + 1
        if not len(begins):
            return None
        behind = begins[begins > block]
        return int(behind[0] if len(behind) else begins[0])
