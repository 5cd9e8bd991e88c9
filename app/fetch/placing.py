"""Where fetched files go: are they there already, is there room, and their names at the end."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from app.settings.words import size_text
from app.transfer.errors import FetchError
from app.transfer.parts import Part
from app.transfer.plan import Plan


def already_there(plan: Plan, folder: Path) -> tuple[Path, ...]:
    """The model's files if all of them have been fetched before; () otherwise.

    Raises `FetchError` when another file has one of their names.
    """
    paths = tuple(folder / model.name for model in plan.models)
    there = [path for path in paths if path.exists()]
    for model, path in zip(plan.models, paths, strict=True):
        if path in there and (
            not path.is_file() or (model.size or path.stat().st_size) != path.stat().st_size
        ):
            raise _other(path)
    return paths if there and len(there) == len(paths) else ()


def check_disk(plan: Plan, folder: Path) -> None:
    """Raise `FetchError` when what is still to come does not fit onto the folder's disk."""
    needed = sum(max(0, (file.size or 0) - Part(folder, file.name).done) for file in plan.files)
    if plan.unpack is not None:
        needed += sum(model.size or 0 for model in plan.models)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise FetchError(
            f"{plan.title} needs {size_text(needed)} on the disk of {folder}, which has {size_text(free)}; "
            f"make room for {size_text(needed - free)} more"
        )


def give_names(plan: Plan, folder: Path, names: Sequence[str]) -> tuple[Path, ...]:
    """Turn the whole parts into the files of these names, all or none; return their paths."""
    paths = tuple(folder / name for name in names)
    if not paths:
        raise FetchError(f"{plan.title} holds no GGUF model; what was fetched was deleted", useless=True)
    for path in paths:
        if path.exists():
            raise _other(path)
    for path in paths:
        Part(folder, path.name).finish(path)
    return paths


def _other(path: Path) -> FetchError:
    return FetchError(f"{path} is there already and is another file; rename or delete it, then fetch again")
