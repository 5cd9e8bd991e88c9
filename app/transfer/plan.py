"""What is to be fetched, as plain data, and what a source of models has to do."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Protocol

from app.transfer.web import Web

GGUF = b"GGUF"
"""How every model file begins."""


def _nothing() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Licence:
    """The terms of a model. consent: a person has to agree to them first."""

    name: str = "not stated"
    url: str = ""
    consent: bool = False


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a server. Size and SHA-256 are None where nobody says them.

    magic: how it must begin. login: how to log in there, the end of a sentence.
    """

    url: str = field(repr=False)
    name: str
    size: int | None = None
    sha256: str | None = None
    headers: Mapping[str, str] = field(default_factory=_nothing, repr=False)
    magic: bytes = GGUF
    login: str = ""


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A file that is there afterwards. Its size is None where it shows only then."""

    name: str
    size: int | None = None


Unpack = Callable[[Sequence[Path], Path, Mapping[str, str], Callable[[], None]], list[str]]
"""Makes `NAME.part` of each model file from what was fetched, and returns the names.

Takes the fetched files, the folder, the SHA-256 that is expected of names, and what to call between blocks.
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a fetch will do. what: the word that was asked for, which asks for the same again.

    models: what is there afterwards, in the folder below the models' folder; () where nobody says before.
    present: files that this computer has already, in a place of another program, instead of fetching.
    certificates: a file with those to trust, instead of the system's.
    """

    what: str
    title: str
    source: str
    licence: Licence
    files: tuple[RemoteFile, ...]
    models: tuple[ModelFile, ...] = ()
    folder: PurePath = field(default_factory=PurePath)
    unpack: Unpack | None = None
    expected: Mapping[str, str] = field(default_factory=_nothing)
    present: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()
    certificates: str | None = None

    @property
    def size(self) -> int | None:
        """Bytes to fetch; None where a server does not say."""
        sizes = [file.size for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a source may ask while it makes a plan. free_memory: bytes for a model; None: not known.

    fits: tells of a quantisation by its name whether this model would fit as that; None: not known.
    """

    web: Web
    environment: Mapping[str, str]
    free_memory: int | None = None
    fits: Callable[[str], bool] | None = None


class Source(Protocol):
    """Where models come from."""

    def plan(self, what: str, asked: Asked) -> Plan:
        """Find out what `what`, without the source's own prefix, means. Raises `FetchError`."""
