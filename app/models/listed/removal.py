"""Deleting a model's files: only those in the app's own folders, and none that a chat has open."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from app.models.builtin import is_builtin
from app.models.found import ModelSearch
from app.models.listed.listing import ModelFile
from app.models.stores.store import Store
from app.models.stores.table import STORES

_HOW = {
    "ollama": "`ollama rm {name}` removes it",
    "hugging-face": "`hf cache rm model/{repository}` removes it",
    "lm-studio": "LM Studio's list of its models removes it",
    "jan": "Jan's list of its models removes it",
    "gpt4all": "GPT4All's list of its models removes it",
    "llama.cpp": "llama.cpp has no command for that: delete {path} yourself",
}


class RemovalRefused(Exception):
    """A model is not deleted from here; says why and what to do."""


@dataclass(frozen=True, slots=True)
class Removal:
    """What deleting a model means. links: whether files stay where they are, and only links to them go."""

    paths: tuple[Path, ...]
    size: int
    links: bool


def plan_removal(model: ModelFile, search: ModelSearch, in_use: Mapping[Path, str]) -> Removal:
    """Find out what would be deleted. Reads the file system.

    in_use: by file the title of a chat that has it open. Raises `RemovalRefused`.
    """
    from engine import part_paths

    path = model.path
    if is_builtin(path):
        raise RemovalRefused("It is a part of tui-chat and cannot be deleted.")
    parts = tuple(part for part in part_paths(path) if part.is_file() or part.is_symlink())
    chat = next((in_use[part] for part in (path, *parts) if part in in_use), None)
    if chat is not None:
        raise RemovalRefused(f"“{chat}” has it open: choose another model there, then delete it.")
    if (store := _owner(path, search)) is not None:
        raise RemovalRefused(f"It belongs to {store.title}: {_how(store, model)}.")
    if not any(path.is_relative_to(folder) for folder in search.folders):
        raise RemovalRefused(f"It is in no folder of tui-chat: delete {path} yourself.")
    if not parts:
        raise RemovalRefused(f"{path} does not exist any more.")
    size = sum(0 if part.is_symlink() else part.stat().st_size for part in parts)
    return Removal(parts, size, all(part.is_symlink() for part in parts))


def remove(removal: Removal) -> None:
    """Delete the files. Raises `OSError`."""
    for path in removal.paths:
        path.unlink(missing_ok=True)


def _owner(path: Path, search: ModelSearch) -> Store | None:
    """The program in whose store a file is, whatever folders of the app lie around it."""
    for store in STORES:
        if any(path.is_relative_to(folder) for folder in store.folders(search.around)):
            return store
    return None


def _how(store: Store, model: ModelFile) -> str:
    name = model.found.names[0] if model.found is not None else model.title
    repository = "/".join(name.split("/")[:2])
    return _HOW[store.key].format(name=name, repository=repository, path=model.path)
