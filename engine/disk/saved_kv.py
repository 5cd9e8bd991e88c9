"""Whose contexts the files of a folder hold, so that they can be deleted with their owners.

An owner is a name that the caller makes up, such as a chat's id. A record beside the files has, for each
owner, which files it has use of and how many of their first blocks: a file goes when nobody has use of
it any more, and is cut where only another's blocks are left. It is the files of a cache: whatever is
deleted too early is read again by the model. Any thread may call anything here.
"""

import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from engine.disk.segment import TEMPORARY, Refused, shorten

log = logging.getLogger(__name__)

KV_SUFFIX = ".kv"
_OWNER_SUFFIX = ".owner"
_UNCLAIMED_S = 3600.0
"""Age from which a file of nobody is deleted: another program may be about to say whose it is."""

_Record = tuple[str, dict[str, int]]
"""An owner, and of how many blocks of which files it has use."""


class SavedKV:
    """The saved contexts in one folder, which need not exist."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def nbytes(self) -> int:
        """What the contexts take of the disk."""
        return sum(_size(path) for path in self._files(KV_SUFFIX))

    def add(self, owner: str, used: Mapping[str, int]) -> None:
        """Note of how many blocks of files an owner has use, beside what was noted; raises `OSError`."""
        path = self._folder / f"{blake2b(owner.encode(), digest_size=16).hexdigest()}{_OWNER_SUFFIX}"
        files = self._read(path)[1]
        for name, blocks in used.items():
            files[name] = max(blocks, files.get(name, 0))
        there = {name: blocks for name, blocks in files.items() if (self._folder / name).exists()}
        handle, temporary = tempfile.mkstemp(dir=self._folder, prefix=TEMPORARY)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"owner": owner, "files": there}, file)
        Path(temporary).replace(path)

    def forget(self, owners: Collection[str]) -> None:
        """Delete what nobody but these owners has use of."""
        self._forget(lambda owner: owner in owners)

    def keep_only(self, owners: Collection[str]) -> None:
        """Delete what none of these owners has use of, but for files that have only just been written."""
        self._forget(lambda owner: owner not in owners)
        claimed = {name for _, files in self._records().values() for name in files}
        for path in self._files(KV_SUFFIX):
            with suppress(OSError):
                if path.name not in claimed and time.time() - path.stat().st_mtime > _UNCLAIMED_S:
                    path.unlink()

    def clear(self) -> None:
        """Delete everything; raises `OSError` where that cannot be."""
        for suffix in (KV_SUFFIX, _OWNER_SUFFIX):
            for path in self._files(suffix):
                path.unlink(missing_ok=True)

    def _forget(self, gone: Callable[[str], bool]) -> None:
        records = self._records()
        lost = {path: files for path, (owner, files) in records.items() if gone(owner)}
        wanted: dict[str, int] = {}
        for path, (_, files) in records.items():
            for name, blocks in () if path in lost else files.items():
                wanted[name] = max(blocks, wanted.get(name, 0))
        for name in {name for files in lost.values() for name in files}:
            self._cut(self._folder / name, wanted.get(name, 0))
        for path in lost:
            path.unlink(missing_ok=True)

    @staticmethod
    def _cut(path: Path, blocks: int) -> None:
        """Keep the first blocks of a file; one that is damaged is of no use to anybody."""
        try:
            if blocks:
                shorten(path, blocks)
                return
        except FileNotFoundError:
            return
        except (Refused, OSError) as error:
            log.warning("KV file %s cannot be cut: %s", path, error)
        path.unlink(missing_ok=True)

    def _records(self) -> dict[Path, _Record]:
        return {path: self._read(path) for path in self._files(_OWNER_SUFFIX)}

    @staticmethod
    def _read(path: Path) -> _Record:
        """A record; one that is damaged is nobody's."""
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            record = json.loads(path.read_text(encoding="utf-8"))
            files = {Path(name).name: int(blocks) for name, blocks in record["files"].items()}
            return str(record["owner"]), files
        return "", {}

    def _files(self, suffix: str) -> Iterator[Path]:
        with suppress(FileNotFoundError, NotADirectoryError):
            yield from (Path(entry.path) for entry in os.scandir(self._folder) if entry.name.endswith(suffix))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
