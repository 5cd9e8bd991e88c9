"""The small model that ships inside the package, found in a wheel and in a checkout alike; titles of all."""

from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from app.models.endpoint_keys import endpoint_model
from app.models.stores.ollama import name_of

BUILTIN_NAME = "builtin"
"""What a person writes to mean the built-in model: `-m builtin`."""
BUILTIN_FILE = "pocket-46m-q5_k_s.gguf"
BUILTIN_TITLE = "Pocket 46M"
_NAMELESS = "model"


def builtin_model_path() -> Path:
    """Return the path of the built-in model file.

    Raises `FileNotFoundError` when the installation lacks it.
    """
    path = Path(str(files("app.builtin") / BUILTIN_FILE))
    if not path.is_file():
        raise FileNotFoundError(
            f"the built-in model is missing: {path}; reinstall tui-chat or choose a model with -m PATH"
        )
    return path


def is_builtin(path: str | Path) -> bool:
    """Tell whether `path` names the built-in model file."""
    return Path(path).name == BUILTIN_FILE


def model_title(path: str | Path) -> str:
    """Return the short name of a model file, or of an endpoint's model."""
    return _known_title(str(path))


# A long chat asks once a message, and of the same few models.
@lru_cache(maxsize=1024)
def _known_title(path: str) -> str:
    if (elsewhere := endpoint_model(path)) is not None:
        endpoint, model = elsewhere
        return model.rstrip("/").rpartition("/")[2].removesuffix(".gguf") or endpoint
    return BUILTIN_TITLE if is_builtin(path) else _title(Path(path))


def model_name(path: Path) -> str:
    """Return what the engine calls a model: its file's name, or its program's for it."""
    return path.stem if has_own_name(path) else model_title(path)


def has_own_name(path: Path) -> bool:
    """Tell whether a model file is named after its model, and not like all files of its program."""
    return path.suffix.casefold() == ".gguf" and path.stem != _NAMELESS


@lru_cache(maxsize=1024)
def _title(path: Path) -> str:
    if path.stem == _NAMELESS and path.parent.name:
        return path.parent.name
    return name_of(path) or path.stem
