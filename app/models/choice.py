"""From what a person writes (`builtin`, a path, a name or its beginning) to a model file.

A model has two names: its file's, and the one that its file gives it and that lists show.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app.models.builtin import BUILTIN_NAME, builtin_model_path
from app.settings.file import Settings
from app.settings.paths import Locations

if TYPE_CHECKING:
    from engine import ModelSummary

_SHOWN = 5


class ModelChoiceError(Exception):
    """No model, or more than one, fits what was written; says what there is."""


def model_folders(
    settings: Settings, places: Locations, extra: Iterable[str | Path] = ()
) -> tuple[Path, ...]:
    """Return the folders that are searched, each once: command line, settings, the app's own."""
    folders = [*map(Path, extra), *map(Path, settings.models.folders), places.models]
    return tuple(dict.fromkeys(folder.expanduser() for folder in folders))


def available_models(folders: Iterable[Path]) -> list["ModelSummary"]:
    """Describe the built-in model and all that the folders hold."""
    from engine import list_models

    return list_models(folders, [builtin_model_path()])


def resolve_model(name: str, folders: Sequence[Path]) -> Path:
    """Return the file that `name` means: `builtin`, a path, one of a model's names or its unique beginning.

    Raises `ModelChoiceError` when there is none or more than one.
    """
    if name == BUILTIN_NAME:
        return builtin_model_path()
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        raise ModelChoiceError(f"{path} is a folder; name a .gguf file in it")
    if path.is_absolute() or name.startswith((".", "~")):
        raise ModelChoiceError(f"there is no model file {path}")
    return _by_name(name, available_models(folders), folders)


def _by_name(name: str, models: "Sequence[ModelSummary]", folders: Sequence[Path]) -> Path:
    wanted = name.casefold()
    files = [(model, (model.path.name.casefold(), model.path.stem.casefold())) for model in models]
    matching = (
        [model for model, names in files if wanted in names][:1]
        or [model for model in models if model.name.casefold() == wanted]
        or [
            model
            for model, names in files
            if names[0].startswith(wanted) or model.name.casefold().startswith(wanted)
        ]
    )
    if len(matching) == 1:
        return matching[0].path
    if matching:
        fitting = _names(matching)
        raise ModelChoiceError(f"{name!r} fits several models: {fitting}; write more of the file's name")
    places = ", ".join(str(folder) for folder in folders)
    raise ModelChoiceError(
        f"no file and no model in {places} is named {name!r}; there are {_names(models)} and {BUILTIN_NAME}"
    )


def _names(models: "Sequence[ModelSummary]") -> str:
    shown = ", ".join(model.path.name for model in models[:_SHOWN])
    return f"{shown} and {len(models) - _SHOWN} more" if len(models) > _SHOWN else shown
