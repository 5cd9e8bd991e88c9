"""What the reader has done with models: favourites, when each was used last, how the picker sorts them.

A small JSON file; what another version of the program keeps in it stays there.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from app.settings.paths import write_atomically

log = logging.getLogger(__name__)

_MOST_MODELS = 1000
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Notes:
    """The file as it was read."""

    favourites: frozenset[Path] = frozenset()
    used: Mapping[Path, float] = field(default_factory=dict)
    """When a model's last answer ended, in seconds since 1970."""
    order: str = ""
    """The picker's, "" where none was chosen."""
    contexts: Mapping[Path, int] = field(default_factory=dict)
    """How many tokens chats with a model may have, where that was chosen."""


class ModelNotes:
    """Reads and writes the file; for any thread, and for several processes one after the other."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()

    def read(self) -> Notes:
        """Read what is kept; a file that is damaged says nothing."""
        kept = self._read()
        return Notes(
            frozenset(map(Path, _favourites(kept))),
            {Path(path): at for path, at in _used(kept).items()},
            order if isinstance(order := kept.get("order"), str) else "",
            {Path(path): tokens for path, tokens in _contexts(kept).items()},
        )

    def toggle_favourite(self, model: Path) -> bool:
        """Make a model a favourite, or no more; return which. Raises `OSError`."""

        def change(kept: dict[str, Any]) -> bool:
            paths = _favourites(kept)
            others = [path for path in paths if path != str(model)]
            kept["favourites"] = others if len(others) < len(paths) else [*paths, str(model)]
            return len(kept["favourites"]) > len(others)

        return self._change(change)

    def keep_order(self, order: str) -> None:
        """Remember how models are sorted. Raises `OSError`."""
        self._change(lambda kept: kept.update(order=order))

    def keep_context(self, model: Path, tokens: int | None) -> None:
        """Remember how much context was chosen of a model; None: all. Raises `OSError`."""

        def change(kept: dict[str, Any]) -> None:
            contexts = _contexts(kept)
            contexts.pop(str(model), None)
            kept["contexts"] = contexts | ({str(model): tokens} if tokens is not None else {})

        self._change(change)

    def context_of(self, model: Path) -> int | None:
        """Return how much context was chosen of a model; None: all."""
        return _contexts(self._read()).get(str(model))

    def note_use(self, model: Path) -> None:
        """Remember that a model was used just now; what cannot be written is only logged."""

        def change(kept: dict[str, Any]) -> None:
            used = _used(kept)
            used.pop(str(model), None)
            used[str(model)] = round(time.time())
            kept["used"] = dict(list(used.items())[-_MOST_MODELS:])

        try:
            self._change(change)
        except OSError as error:
            log.warning("the last use of a model is not kept: %s", error)

    def _change(self, change: Callable[[dict[str, Any]], _Result]) -> _Result:
        with self._lock:
            kept = self._read()
            result = change(kept)
            write_atomically(self._file, json.dumps(kept, indent=1))
        return result

    def _read(self) -> dict[str, Any]:
        try:
            kept = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return kept if isinstance(kept, dict) else {}


def _favourites(kept: Mapping[str, Any]) -> list[str]:
    paths = kept.get("favourites")
    return [path for path in paths if isinstance(path, str)] if isinstance(paths, list) else []


def _contexts(kept: Mapping[str, Any]) -> dict[str, int]:
    contexts = kept.get("contexts")
    pairs = contexts.items() if isinstance(contexts, dict) else ()
    return {path: tokens for path, tokens in pairs if type(tokens) is int and tokens > 0}


def _used(kept: Mapping[str, Any]) -> dict[str, float]:
    used = kept.get("used")
    pairs = used.items() if isinstance(used, dict) else ()
    return {path: at for path, at in pairs if isinstance(at, int | float) and not isinstance(at, bool)}
