"""What is asked of each program's store."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.models.stores.surroundings import Surroundings

_LARGEST_SETTINGS = 4 << 20


@dataclass(frozen=True, slots=True)
class StoredModel:
    """One model of a store."""

    path: Path
    """Its file, of a split one the first part."""
    name: str
    """What the program calls it."""
    problem: str | None = None
    """What is wrong before its file is even looked at."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What the program keeps beside the file: `template`, `parameters`, `system`."""
    entry: Path | None = None
    """A file that stands for this name alone, where the program may have several for one model file."""


@dataclass(frozen=True, slots=True)
class Store:
    """One program's way of keeping model files."""

    key: str
    """Its name in the settings."""
    title: str
    """What people call the program."""
    folders: Callable[[Surroundings], list[Path]]
    """Where it keeps them, the likeliest first, whether they exist or not."""
    models: Callable[[Path], Iterable[StoredModel]]
    """What one of the folders holds; raises `OSError` for one that cannot be read."""


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object of another program's file; empty where there is none that can be read."""
    try:
        if path.stat().st_size > _LARGEST_SETTINGS:
            return {}
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def files_below(folder: Path) -> list[StoredModel]:
    """All .gguf files of a folder, each named by its way from there."""
    from engine import model_paths

    paths = model_paths(folder)
    return [StoredModel(path, path.relative_to(folder).with_suffix("").as_posix()) for path in paths]
