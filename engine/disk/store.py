"""A folder of KV files under a limit of bytes; the least recently used go first.

The folder itself is the index: a file's name begins with the chain hash of its first block's tokens, so
that a look-up lists names and opens what may match. Several programs may use one folder, since files
appear whole, are never changed and are looked for anew each time; one that has vanished was given up by
another. Any thread may call anything here.
"""

import logging
import os
import shutil
import time
from array import array
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from engine.disk.fingerprint import Fingerprint
from engine.disk.saved_kv import KV_SUFFIX, SavedKV
from engine.disk.segment import TEMPORARY, Refused, Segment, SegmentHead

log = logging.getLogger(__name__)

_MOST_BYTES = 8 << 30
_SHARE = 10
_ABANDONED_S = 3600.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a block's pages are."""

    path: Path
    index: int
    """Among the blocks of the file."""
    mask: int
    """Which pages are there."""
    first: int
    """Number of the file's first block in the sequence."""


@dataclass(slots=True)
class Found:
    """What files have of a sequence."""

    places: dict[int, Place] = field(default_factory=dict)
    """By number of the block; where several files have one, that with the most pages."""
    refusals: dict[int, str] = field(default_factory=dict)
    """Why a file that begins with that block cannot be used, behind "KV on disk"."""

    @property
    def used(self) -> dict[str, int]:
        """How many of its first blocks are of use, by a file's name."""
        used: dict[str, int] = {}
        for place in self.places.values():
            used[place.path.name] = max(place.index + 1, used.get(place.path.name, 0))
        return used

    def run(self, first: int) -> list[Place]:
        """The blocks from number `first` on, up to one that no file has."""
        places: list[Place] = []
        while first + len(places) in self.places:
            places.append(self.places[first + len(places)])
        return places


def chain_hashes(token_ids: "array[int]", block_size: int) -> list[bytes]:
    """Of each full block: a hash of its tokens and of all before."""
    value, hashes = b"", []
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        block = token_ids[start : start + block_size].tobytes()
        value = blake2b(value + block, digest_size=16).digest()
        hashes.append(value)
    return hashes


def file_name(first: bytes, last: bytes, fingerprint: Fingerprint) -> str:
    """Of a file, from the chain hashes of its first and last block."""
    return f"{first.hex()}.{fingerprint.key}.{last.hex()[:16]}{KV_SUFFIX}"


class KVStore:
    """Files of all models in one folder."""

    def __init__(self, folder: Path, limit_bytes: int | None) -> None:
        """limit_bytes: None for a tenth of what is free on the disk, and no more than 8 GiB."""
        self.folder = folder
        self.saved = SavedKV(folder)
        self.used_bytes = 0
        """Of the files that were there when the folder was last listed."""
        self.limit_bytes = limit_bytes or 0
        self._automatic = limit_bytes is None

    @property
    def enabled(self) -> bool:
        """Whether anything may be kept."""
        return self._automatic or self.limit_bytes > 0

    def open(self) -> None:
        """Make the folder, for its owner alone, and clear it of what nobody finished; raises `OSError`."""
        if not self.enabled and not self.folder.exists():
            return
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in self.folder.glob(f"{TEMPORARY}*"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _ABANDONED_S:
                    path.unlink()
        self.make_room()

    def find(self, token_ids: "array[int]", fingerprint: Fingerprint, block_size: int) -> Found:
        """The blocks of these tokens that files hold, compared token by token; raises `OSError`."""
        found, names = Found(), self._names()
        for number, value in enumerate(chain_hashes(token_ids, block_size)):
            for path in names.get(value.hex(), ()):
                try:
                    head = self._head(path)
                    if head.fingerprint != fingerprint:
                        raise Refused(fingerprint.difference(head.fingerprint))
                except FileNotFoundError:
                    continue
                except Refused as refusal:
                    found.refusals[number] = str(refusal)
                    continue
                if head.first != number:
                    continue
                for index in range(head.matching(token_ids)):
                    place = Place(path, index, head.masks[index], number)
                    old = found.places.get(number + index)
                    if old is None or old.mask.bit_count() < place.mask.bit_count():
                        found.places[number + index] = place
        return found

    def _head(self, path: Path) -> SegmentHead:
        try:
            with Segment(path) as segment:
                return segment.head
        except Refused as refusal:
            self.drop(path, refusal)
            raise

    def open_at(self, place: Place, token_ids: "array[int]", fingerprint: Fingerprint) -> Segment:
        """The file of a place, compared once more: another program may have put it there since.

        Raises `Refused` or `OSError`.
        """
        try:
            segment = Segment(place.path)
        except Refused as refusal:
            self.drop(place.path, refusal)
            raise
        head = segment.head
        if head.fingerprint != fingerprint or head.first != place.first:
            segment.close()
            raise Refused("was replaced meanwhile")
        if head.matching(token_ids) <= place.index or head.masks[place.index] != place.mask:
            segment.close()
            raise Refused("was replaced meanwhile")
        return segment

    def use(self, paths: Iterable[tuple[int, Path]]) -> None:
        """Count files as used just now, given by the number of their first block.

        What comes before another in its sequence is used later: without it the other is worth nothing.
        """
        now = time.time_ns()
        for age, (_, path) in enumerate(sorted(set(paths))):
            with suppress(OSError):
                os.utime(path, ns=(now - age, now - age))

    def drop(self, path: Path, why: Refused) -> None:
        """Remove a file that is of no use to anybody."""
        log.warning("KV file %s %s; it is removed", path, why)
        with suppress(OSError):
            path.unlink()

    def make_room(self) -> None:
        """Remove files until they keep to the limit; raises `OSError`."""
        files = []
        for entry in os.scandir(self.folder):
            if entry.name.endswith(KV_SUFFIX):
                with suppress(FileNotFoundError):
                    status = entry.stat()
                    files.append((status.st_mtime_ns, status.st_size, entry.path))
        used = sum(size for _, size, _ in files)
        if self._automatic:
            self.limit_bytes = min(_MOST_BYTES, (shutil.disk_usage(self.folder).free + used) // _SHARE)
        for _, size, path in sorted(files):
            if used <= self.limit_bytes:
                break
            Path(path).unlink(missing_ok=True)
            used -= size
        self.used_bytes = used

    def _names(self) -> dict[str, list[Path]]:
        """Files by the chain hash that their name begins with; none where there is no folder."""
        names: dict[str, list[Path]] = {}
        with suppress(FileNotFoundError):
            for entry in os.scandir(self.folder):
                if entry.name.endswith(KV_SUFFIX):
                    names.setdefault(entry.name.partition(".")[0], []).append(Path(entry.path))
        return names
