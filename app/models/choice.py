"""From what a person writes (`builtin`, a path, a name or its beginning) to a model file."""

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
    """Return the file that `name` means: `builtin`, a path, a file's name or its unique beginning.

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
    return _by_name(name, _model_files(folders), folders)


def _by_name(name: str, candidates: list[Path], folders: Sequence[Path]) -> Path:
    wanted = name.lower()
    exact = [p for p in candidates if wanted in (p.name.lower(), p.stem.lower())]
    matching = exact[:1] or [p for p in candidates if p.name.lower().startswith(wanted)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise ModelChoiceError(f"{name!r} fits several models: {_names(matching)}; write more of the name")
    places = ", ".join(str(folder) for folder in folders)
    known = f"; there are {_names(candidates)}" if candidates else ""
    raise ModelChoiceError(f"no file and no model in {places} is named {name!r}{known} and {BUILTIN_NAME}")


def _model_files(folders: Iterable[Path]) -> list[Path]:
    """All model files of the folders, only the first part of a split one, the built-in one last."""
    from engine import list_models

    return [model.path for model in list_models(folders)] + [builtin_model_path()]


def _names(paths: Sequence[Path]) -> str:
    shown = ", ".join(path.name for path in paths[:_SHOWN])
    return f"{shown} and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else shown
