"""From what a person writes (`builtin`, a path, a name or its beginning, ENDPOINT/MODEL) to a model.

A model has several names: its file's, those of the programs that keep it, and the one that its file gives
it and that lists show.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from app.models.builtin import BUILTIN_NAME, builtin_model_path
from app.models.endpoint_keys import endpoint_key
from app.models.found import OWN, FoundModel, ModelSearch, find
from app.models.stores.ollama import weights_of

_SHOWN = 5
_USUAL_TAG = ":latest"


class ModelChoiceError(Exception):
    """No model, or more than one, fits what was written; says what there is."""


def resolve_model(name: str, search: ModelSearch) -> Path:
    """Return the file that `name` means: `builtin`, a path, one of a model's names or its unique beginning.

    ENDPOINT/MODEL, with an endpoint of the settings, is the key of that server's model, ENDPOINT alone of
    its first.
    Raises `ModelChoiceError` when there is none or more than one, or when the one cannot be opened.
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
    endpoint, _, model = name.partition("/")
    if endpoint in search.endpoints:
        return endpoint_key(endpoint, model)
    return _by_name(name, find(search), search.folders)


def _by_name(name: str, models: Sequence[FoundModel], folders: Sequence[Path]) -> Path:
    wanted = name.casefold()
    matching = (
        [model for model in models if wanted in _stores_names(model)][:1]
        or _first_own([model for model in models if wanted in _files_names(model)])
        or [model for model in models if model.summary.name.casefold() == wanted]
        or [model for model in models if any(one.startswith(wanted) for one in _all_names(model))]
    )
    usable = [model for model in matching if model.summary.supported]
    matching = usable or matching
    if len(matching) == 1:
        return _openable(matching[0])
    if matching:
        fitting = _names(matching)
        raise ModelChoiceError(f"{name!r} fits several models: {fitting}; write more of the name")
    places = ", ".join(str(folder) for folder in folders)
    raise ModelChoiceError(
        f"no file and no model in {places} or of other programs is named {name!r}; "
        f"there are {_names(models)} and {BUILTIN_NAME}"
    )


def _openable(model: FoundModel) -> Path:
    """Its file; what has no file of its own says why."""
    if model.path.suffix.casefold() != ".gguf" and not model.summary.supported:
        raise ModelChoiceError(f"{model.names[0]} cannot be opened: {model.summary.problem}")
    return model.path


def _first_own(models: list[FoundModel]) -> list[FoundModel]:
    """Of files of one name the first in the app's own folders; several elsewhere are several models."""
    return [model for model in models if model.store == OWN][:1] or models


def _stores_names(model: FoundModel) -> set[str]:
    """What programs call it."""
    named = {name.casefold() for name in model.names}
    return named | {name.removesuffix(_USUAL_TAG) for name in named}


def _files_names(model: FoundModel) -> set[str]:
    file = weights_of(model.path)
    return {file.name.casefold(), file.stem.casefold()}


def _all_names(model: FoundModel) -> Iterable[str]:
    return (*_files_names(model), *_stores_names(model), model.summary.name.casefold())


def _names(models: Sequence[FoundModel]) -> str:
    shown = ", ".join(_shown(model) for model in models[:_SHOWN])
    return f"{shown} and {len(models) - _SHOWN} more" if len(models) > _SHOWN else shown


def _shown(model: FoundModel) -> str:
    return model.path.name if model.store == OWN else model.names[0]
