"""The file format: KV pages of a run of full blocks, with the token ids of all that they depend on.

A file is the pages, block after block, then its head, then a footer of fixed size. The head has the
fingerprint, the token ids from the first one of the sequence to the last one of the file, and for each
block which pages are there and their CRC-32, which is the quickest checksum at hand. The footer has the
sizes of both and a digest of the head, so that a file that was cut off or changed anywhere is refused.
Nothing is forced to the disk: what a power cut leaves is found by the same checks.
"""

import hashlib
import json
import os
import struct
import tempfile
from array import array
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import BinaryIO
from zlib import crc32

from engine.disk.fingerprint import Fingerprint

TEMPORARY = ".writing-"
"""What the name of an unfinished file begins with."""
TOKEN_TYPE = "i"

_MAGIC = b"TUIKV\r\n\x01"
_FOOTER = struct.Struct("<QQ16s8s")
"""Bytes of the pages and of the head, digest of the head and of these sizes, magic."""
_DAMAGED = "was damaged"
_OTHERS_WRITE = 0o022


class Refused(Exception):
    """KV in a file cannot be used; says why in a few words behind "KV on disk"."""


@dataclass(frozen=True, slots=True)
class SegmentHead:
    """What a file holds."""

    fingerprint: Fingerprint
    block_size: int
    first: int
    """Number of its first block in the sequence."""
    page_bytes: tuple[int, ...]
    """Of a block, then of a page of each window."""
    masks: tuple[int, ...]
    """Of each block, which pages are there: bit 0 for the block itself, then one for each window."""
    checksums: tuple[int, ...]
    """Of each block's pages, one after another."""
    token_ids: "array[int]"
    """From the sequence's first to the file's last; KV depends on all that come before it."""

    def sizes(self) -> list[int]:
        """Bytes of each block."""
        return [self.bytes_of(mask) for mask in self.masks]

    def bytes_of(self, mask: int) -> int:
        """Bytes of the pages that a mask names."""
        return sum(size for pool, size in enumerate(self.page_bytes) if mask >> pool & 1)

    def matching(self, token_ids: "array[int]") -> int:
        """How many of its blocks hold the KV of these tokens; none where what comes before is other."""
        size = self.block_size
        begin = (self.first + 1) * size
        if self.token_ids[:begin] != token_ids[:begin]:
            return 0
        most = min(len(self.token_ids), len(token_ids) // size * size)
        end = begin
        while end < most and self.token_ids[end : end + size] == token_ids[end : end + size]:
            end += size
        return end // size - self.first

    def encode(self) -> bytes:
        """As it stands in a file."""
        plain = {
            "fingerprint": asdict(self.fingerprint),
            "block_size": self.block_size,
            "first": self.first,
            "page_bytes": self.page_bytes,
            "masks": self.masks,
            "checksums": self.checksums,
        }
        text = json.dumps(plain).encode()
        return struct.pack("<I", len(text)) + text + self.token_ids.tobytes()


def _decode(content: bytes) -> SegmentHead:
    """What `encode` gave; raises `Refused` for anything else."""
    try:
        length = struct.unpack_from("<I", content)[0]
        plain = json.loads(content[4 : 4 + length])
        tokens = array(TOKEN_TYPE)
        tokens.frombytes(content[4 + length :])
        head = SegmentHead(
            Fingerprint(**plain["fingerprint"]),
            plain["block_size"],
            plain["first"],
            tuple(plain["page_bytes"]),
            tuple(plain["masks"]),
            tuple(plain["checksums"]),
            tokens,
        )
        whole = len(tokens) == (head.first + len(head.masks)) * head.block_size
        if head.masks and whole and len(head.masks) == len(head.checksums):
            return head
    except (KeyError, TypeError, ValueError, struct.error):
        pass
    raise Refused(_DAMAGED)


class Segment:
    """An open file; raises `Refused` for one that cannot be trusted, `OSError` for one that is gone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO = path.open("rb", buffering=0)
        try:
            self.head, self._offsets = self._read_head()
        except BaseException:
            self._file.close()
            raise

    def _read_head(self) -> tuple[SegmentHead, list[int]]:
        status = os.fstat(self._file.fileno())
        if hasattr(os, "geteuid") and (status.st_uid != os.geteuid() or status.st_mode & _OTHERS_WRITE):
            raise Refused("could have been written by others")
        if status.st_size < _FOOTER.size:
            raise Refused(_DAMAGED)
        self._file.seek(-_FOOTER.size, os.SEEK_END)
        pages, length, digest, magic = _FOOTER.unpack(self._file.read(_FOOTER.size))
        if magic != _MAGIC or pages + length + _FOOTER.size != status.st_size:
            raise Refused(_DAMAGED)
        self._file.seek(pages)
        content = self._file.read(length)
        if _digest(content, pages) != digest:
            raise Refused(_DAMAGED)
        head = _decode(content)
        offsets = [0, *accumulate(head.sizes())]
        if offsets[-1] != pages:
            raise Refused(_DAMAGED)
        return head, offsets

    def read(self, index: int, pages: list[memoryview]) -> None:
        """Fill `pages` with those of block `index` of the file; raises `Refused` if they are not sound."""
        self._file.seek(self._offsets[index])
        checksum = 0
        for page in pages:
            filled = 0
            while filled < len(page):
                count = self._file.readinto(page[filled:])  # type: ignore[attr-defined]
                if not count:
                    raise Refused(_DAMAGED)
                filled += count
            checksum = crc32(page, checksum)
        if checksum != self.head.checksums[index]:
            raise Refused(_DAMAGED)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def __enter__(self) -> "Segment":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class SegmentWriter:
    """A file being written under a temporary name; readable by its owner alone."""

    def __init__(
        self,
        folder: Path,
        fingerprint: Fingerprint,
        block_size: int,
        page_bytes: tuple[int, ...],
        token_ids: "array[int]",
        first: int,
    ) -> None:
        """token_ids: of the whole sequence; first: number of the first block to come. Raises `OSError`."""
        self._fingerprint = fingerprint
        self._block_size = block_size
        self._page_bytes = page_bytes
        self._token_ids = token_ids
        self._first = first
        self._masks: list[int] = []
        self._checksums: list[int] = []
        self.nbytes = 0
        handle, name = tempfile.mkstemp(dir=folder, prefix=TEMPORARY)
        self._path = Path(name)
        self._file = os.fdopen(handle, "wb", buffering=0)

    @property
    def next_block(self) -> int:
        """Number of the block that may be added."""
        return self._first + len(self._masks)

    def add(self, mask: int, pages: list[memoryview]) -> None:
        """Write the next block's pages, those that `mask` names; raises `OSError`."""
        checksum = 0
        for page in pages:
            checksum = crc32(page, checksum)
            self._write(page)
        self._masks.append(mask)
        self._checksums.append(checksum)

    def finish(self, name: str) -> Path:
        """Make it a file of that name: readers see all of it or nothing; raises `OSError`."""
        end = self.next_block * self._block_size
        head = SegmentHead(
            self._fingerprint,
            self._block_size,
            self._first,
            self._page_bytes,
            tuple(self._masks),
            tuple(self._checksums),
            self._token_ids[:end],
        )
        content, pages = head.encode(), self.nbytes
        footer = _FOOTER.pack(pages, len(content), _digest(content, pages), _MAGIC)
        self._write(memoryview(content + footer))
        self._file.close()
        return self._path.replace(self._path.with_name(name))

    def abandon(self) -> None:
        """Leave nothing behind; harmless after `finish`."""
        with suppress(OSError):
            self._file.close()
        self._path.unlink(missing_ok=True)

    def _write(self, content: memoryview) -> None:
        done = 0
        while done < len(content):
            done += self._file.write(content[done:])
        self.nbytes += done


def shorten(path: Path, blocks: int) -> None:
    """Leave only the first blocks of a file, under its name; raises `Refused` or `OSError`."""
    with Segment(path) as segment:
        head = segment.head
        if blocks >= len(head.masks):
            return
        writer = SegmentWriter(
            path.parent, head.fingerprint, head.block_size, head.page_bytes, head.token_ids, head.first
        )
        try:
            for index, mask in enumerate(head.masks[:blocks]):
                named = (size for pool, size in enumerate(head.page_bytes) if mask >> pool & 1)
                pages = [memoryview(bytearray(size)) for size in named]
                segment.read(index, pages)
                writer.add(mask, pages)
            writer.finish(path.name)
        finally:
            writer.abandon()


def _digest(content: bytes, pages: int) -> bytes:
    return hashlib.blake2b(content + pages.to_bytes(8, "little"), digest_size=16).digest()
