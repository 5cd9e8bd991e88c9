"""What stands in a file's place for models that have none here: a name that chats keep, in a path's form."""

from functools import lru_cache
from pathlib import Path
from urllib.parse import quote, unquote

_PREFIX = "endpoint:"


def endpoint_key(endpoint: str, model: str) -> Path:
    """Return the key of an endpoint's model; an empty `model` is the first that the server lists."""
    return Path(f"{_PREFIX}{_quoted(endpoint)}/{_quoted(model)}")


@lru_cache(maxsize=1024)
def endpoint_model(path: str | Path) -> tuple[str, str] | None:
    """Return an endpoint's name and its model's; None for a file's path."""
    endpoint, _, model = str(path).partition("/")
    if not endpoint.startswith(_PREFIX) or "/" in model:
        return None
    return unquote(endpoint.removeprefix(_PREFIX)), unquote(model)


def absolute(path: str | Path) -> Path:
    """Return a file's path from the root on, and a key as it is."""
    return Path(path) if endpoint_model(path) is not None else Path(path).expanduser().absolute()


def _quoted(text: str) -> str:
    return quote(text, safe="", errors="replace")
