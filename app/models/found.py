"""Every model file on this computer: of this app's folders and of other programs' stores."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.models.builtin import BUILTIN_NAME, builtin_model_path, has_own_name
from app.models.index import SummaryIndex
from app.models.stores.store import Store, StoredModel, files_below
from app.models.stores.surroundings import Surroundings, surroundings
from app.models.stores.table import STORES
from app.settings.file import EngineSettings, Settings
from app.settings.paths import Locations
from app.settings.servers.endpoints import Endpoint

if TYPE_CHECKING:
    from engine import ModelSummary

log = logging.getLogger(__name__)

OWN = "tui-chat"
"""The store of the app's own folders and of the built-in model."""


@dataclass(frozen=True, slots=True)
class ModelSearch:
    """Where models are looked for, and what the device that they are for depends on."""

    folders: tuple[Path, ...] = ()
    """The app's own, and those of the command line and the settings."""
    left_out: tuple[str, ...] = ()
    """Stores that are not looked into, by their keys."""
    cache: Path | None = None
    """Where what was read of files is kept; None: nowhere."""
    engine: EngineSettings = field(default_factory=EngineSettings)
    around: Surroundings = field(default_factory=surroundings)
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict)
    """Servers with models of their own."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """One model file, however many stores and names it has.

    Ollama's names for one file whose parameters or system prompts differ are one each.
    """

    summary: "ModelSummary"
    store: str
    """Key of the first store that has it."""
    origin: str
    """What people call that."""
    names: tuple[str, ...]
    """What the stores call it."""
    details: Mapping[str, Any]
    """What a store keeps beside the file: `template`, `parameters`, `system`."""

    @property
    def path(self) -> Path:
        """Its file, of a split one the first part; of a further name of a file that name's own file."""
        return self.summary.path

    @property
    def title(self) -> str:
        """Its short name: its file's, or its store's where files are not named after models."""
        return self.path.stem if self.store != OWN and has_own_name(self.path) else self.names[0]


def search_of(settings: Settings, places: Locations, extra: Iterable[str | Path] = ()) -> ModelSearch:
    """Where these settings, and folders named besides, look."""
    folders = [*map(Path, extra), *map(Path, settings.models.folders), places.models]
    own = tuple(dict.fromkeys(folder.expanduser() for folder in folders))
    return ModelSearch(
        *(own, settings.models.leave_out, places.cache, settings.engine), endpoints=settings.endpoints
    )


def find(search: ModelSearch) -> list[FoundModel]:
    """Describe the built-in model, then all that folders and stores hold, each file once.

    What is broken or not supported is there with its reason. Reads files: call off the UI.
    """
    found = list(_unique(_stored(search)))
    files = list(dict.fromkeys(one.model.path for one in found if one.model.problem is None))
    index = SummaryIndex(search.cache and search.cache / "models.json")
    summaries = dict(zip(files, index.summaries(files), strict=True))
    return [
        FoundModel(
            replace(summaries[one.model.path], path=one.path)
            if one.model.problem is None
            else _unread(one.model),
            one.store.key,
            one.store.title,
            tuple(one.names),
            one.model.details,
        )
        for one in found
    ]


def _unread(model: StoredModel) -> "ModelSummary":
    """A model whose file is not even looked at."""
    from engine import ModelSummary

    try:
        size = model.path.stat().st_size
    except OSError:
        size = 0
    return ModelSummary(model.path, model.name, "", size, "", None, 0, None, False, model.problem, 1)


def _stored(search: ModelSearch) -> Iterator[tuple[Store, StoredModel]]:
    own = Store(OWN, OWN, lambda _around: list(search.folders), _short_names)
    # Whoever asks for it by its name is told that it is missing.
    with suppress(FileNotFoundError):
        yield own, StoredModel(builtin_model_path(), BUILTIN_NAME)
    for store in (own, *STORES):
        if store.key in search.left_out:
            continue
        for folder in dict.fromkeys(store.folders(search.around)):
            try:
                if folder.is_dir():
                    yield from ((store, model) for model in store.models(folder))
            except (OSError, ValueError) as error:
                log.warning("%s: cannot be searched: %s", folder, error)


def _short_names(folder: Path) -> list[StoredModel]:
    return [replace(model, name=model.path.stem) for model in files_below(folder)]


@dataclass(slots=True)
class _Entry:
    """One line of a list."""

    store: Store
    model: StoredModel
    names: list[str]
    path: Path


def _unique(stored: Iterator[tuple[Store, StoredModel]]) -> Iterable[_Entry]:
    """Each file once, with the names that all stores have for it; what cannot be opened hides no other.

    A name with another system prompt or other parameters than the file's first ones is an entry of its own.
    """
    known: dict[object, list[_Entry]] = {}
    for store, model in stored:
        entries = known.setdefault((_file(model), model.problem), [])
        same = next((entry for entry in entries if _alike(entry.model, model)), None)
        if same is None:
            path = model.entry if entries and model.entry is not None else model.path
            entries.append(_Entry(store, model, [model.name], path))
            continue
        if model.name not in same.names:
            same.names.append(model.name)
        if not same.model.details:
            same.model = replace(same.model, details=model.details)
    return [entry for entries in known.values() for entry in entries]


def _alike(one: StoredModel, other: StoredModel) -> bool:
    """Whether two names of a file mean the same; only some programs keep anything beside it."""
    if other.entry is None or (one.entry is None and not one.details):
        return True
    return _used(one) == _used(other)


def _used(model: StoredModel) -> tuple[object, str]:
    return model.details.get("parameters", {}), model.details.get("system", "")


def _file(model: StoredModel) -> object:
    """What is the same for all names of one file."""
    try:
        status = model.path.stat()
    except (OSError, ValueError):
        return str(model.path)
    # Systems without such numbers say 0.
    return (status.st_dev, status.st_ino) if status.st_ino else str(model.path.resolve())
