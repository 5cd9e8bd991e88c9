"""The blocks of one sequence on their way into files."""

from array import array

from engine.disk.fingerprint import Fingerprint
from engine.disk.segment import SegmentWriter
from engine.disk.store import KVStore, chain_hashes, file_name

SEGMENT_BYTES = 16 << 20
"""Size from which a file is ended: what is written when the program is killed is lost, and what one chat
shares with another is kept for both."""


class SequenceFiles:
    """Writes blocks, as they come, to as few files as their size and gaps between them allow."""

    def __init__(
        self,
        store: KVStore,
        fingerprint: Fingerprint,
        block_size: int,
        page_bytes: tuple[int, ...],
        token_ids: "array[int]",
    ) -> None:
        """page_bytes: of a block, then of a page of each window."""
        self._store = store
        self._fingerprint = fingerprint
        self._block_size = block_size
        self._page_bytes = page_bytes
        self._token_ids = token_ids
        self._hashes = chain_hashes(token_ids, block_size)
        self._writer: SegmentWriter | None = None
        self._first = 0
        self.written: dict[str, int] = {}
        """Blocks of each file that was ended, by its name."""

    def add(self, number: int, mask: int, pages: list[memoryview]) -> None:
        """Write the pages of block `number`, those that `mask` names; raises `OSError`."""
        writer = self._writer
        if writer is not None and (writer.next_block != number or writer.nbytes >= SEGMENT_BYTES):
            self.finish()
        if self._writer is None:
            self._first = number
            self._writer = SegmentWriter(
                self._store.folder,
                self._fingerprint,
                self._block_size,
                self._page_bytes,
                self._token_ids,
                number,
            )
        self._writer.add(mask, pages)

    def finish(self) -> None:
        """Have what was written found from now on, and keep to the limit; raises `OSError`."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            first, last = self._hashes[self._first], self._hashes[writer.next_block - 1]
            path = writer.finish(file_name(first, last, self._fingerprint))
            self.written[path.name] = writer.next_block - self._first
        finally:
            writer.abandon()
        self._store.make_room()

    def abandon(self) -> None:
        """Leave nothing of the file that is being written."""
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
