"""Summaries of model files, kept on disk: a file whose size and time are the same is not read again.

It is a cache: one that is damaged, or was written by another version of the program, is made anew.
"""

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.settings.paths import write_atomically

if TYPE_CHECKING:
    from engine import ModelSummary

log = logging.getLogger(__name__)

MOST_KEPT = 5000
_READERS = 4

_Identity = list[list[int] | None]
"""Of each part of a model: device, number, size and time; None where it is missing."""


class SummaryIndex:
    """What is known of files; `file` None: nothing is kept."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._known = _read(file) if file is not None else {}

    def summaries(self, paths: Sequence[Path]) -> "list[ModelSummary]":
        """The summary of each file, read or remembered."""
        identities = [_identity(path) for path in paths]
        found = [self._remembered(path, known) for path, known in zip(paths, identities, strict=True)]
        missing = [number for number, summary in enumerate(found) if summary is None]
        if missing:
            self._read_missing(missing, paths, identities, found)
        return [summary for summary in found if summary is not None]

    def _read_missing(
        self,
        missing: list[int],
        paths: Sequence[Path],
        identities: list[_Identity],
        found: "list[ModelSummary | None]",
    ) -> None:
        from engine import summarize

        with ThreadPoolExecutor(min(_READERS, os.cpu_count() or 1), "headers") as pool:
            read = pool.map(summarize, [paths[number] for number in missing])
        for number, summary in zip(missing, read, strict=True):
            found[number] = summary
            # Behind all others: what was found longest ago is dropped first.
            self._known.pop(str(paths[number]), None)
            self._known[str(paths[number])] = [identities[number], summary.as_data()]
        if self._file is not None:
            _write(self._file, self._known)

    def _remembered(self, path: Path, identity: _Identity) -> "ModelSummary | None":
        from engine import ModelSummary

        entry = self._known.get(str(path))
        with suppress(TypeError, ValueError, KeyError, IndexError, AttributeError):
            if entry is not None and entry[0] == identity:
                return ModelSummary.from_data(path, entry[1])
        return None


def _identity(path: Path) -> _Identity:
    from engine import part_paths

    return [_status(part) for part in part_paths(path)]


def _status(path: Path) -> list[int] | None:
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]


@cache
def _program() -> str:
    """Which version of the program reads headers: what it says of a file may differ from another's."""
    import engine

    digest = hashlib.blake2b(digest_size=16)
    root = Path(engine.__file__).parent
    for path in sorted(root.rglob("*.py")):
        status = path.stat()
        digest.update(f"{path.relative_to(root)} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _read(file: Path) -> dict[str, Any]:
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(kept, dict) or kept.get("program") != _program():
        return {}
    files = kept.get("files")
    return files if isinstance(files, dict) else {}


def _write(file: Path, known: dict[str, Any]) -> None:
    newest = dict(list(known.items())[-MOST_KEPT:])
    try:
        write_atomically(file, json.dumps({"program": _program(), "files": newest}, separators=(",", ":")))
    except OSError as error:
        log.warning("the index of models is not kept: %s", error)
