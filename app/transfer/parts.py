"""Files that are not whole yet: `NAME.part`, and beside it `NAME.part.json` with what is needed to go on."""

import errno
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import BinaryIO

from app.transfer.errors import FetchError

PART = ".part"
_NOTES = ".part.json"


@dataclass(frozen=True, slots=True)
class Notes:
    """What a half-fetched file is a part of. what: the word that fetches the rest."""

    what: str
    size: int | None = None
    sha256: str | None = None
    etag: str | None = None
    last_modified: str | None = None

    @property
    def validator(self) -> str | None:
        """What a server can tell by whether its file is still the same."""
        weak = self.etag is None or self.etag.startswith("W/")
        return self.last_modified if weak else self.etag


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A fetch that can go on. size: None where it is not known."""

    what: str
    path: Path
    done: int
    size: int | None


class Part:
    """The half-written form of one file."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}{PART}"
        self._notes = folder / f"{name}{_NOTES}"

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open the part for reading and writing, made if need be; nobody else may write into it meanwhile.

        Raises `FetchError` when another process does.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                # A file system without locks, as some of a network are, is used without.
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    raise FetchError(
                        f"{self.path} is being fetched by another window; wait for it"
                    ) from error
            yield stream

    @property
    def done(self) -> int:
        """Bytes that are there."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def notes(self) -> Notes | None:
        """What the part belongs to; None when that cannot be read."""
        return _read_notes(self._notes)

    def keep(self, notes: Notes) -> None:
        """Write down what the part belongs to."""
        self._notes.write_text(json.dumps(asdict(notes)), encoding="utf-8")

    def forget(self) -> None:
        """Delete the part and what is beside it."""
        self.path.unlink(missing_ok=True)
        self._notes.unlink(missing_ok=True)

    def finish(self, target: Path) -> None:
        """The part is whole: give it its name."""
        self.path.replace(target)
        self._notes.unlink(missing_ok=True)


def unfinished(folder: Path) -> list[Unfinished]:
    """The fetches below the models' folder that were paused or interrupted, by path."""
    found = []
    for path in sorted(folder.rglob(f"*{_NOTES}")):
        notes = _read_notes(path)
        part = path.with_name(path.name.removesuffix(".json"))
        if notes is not None and part.is_file():
            found.append(Unfinished(notes.what, part, part.stat().st_size, notes.size))
    return found


def drop(parts: Iterable[Unfinished]) -> None:
    """Delete unfinished fetches. Raises `FetchError` when another process is at one of them."""
    for begun in parts:
        part = Part(begun.path.parent, begun.path.name.removesuffix(PART))
        with part.open():
            part.forget()


def _read_notes(path: Path) -> Notes | None:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        notes = Notes(**{field.name: record.get(field.name) for field in fields(Notes)})
    except (OSError, ValueError, AttributeError):
        return None
    texts = (notes.etag, notes.last_modified, notes.sha256)
    sound = isinstance(notes.what, str) and isinstance(notes.size, int | None)
    return notes if sound and all(isinstance(text, str | None) for text in texts) else None
