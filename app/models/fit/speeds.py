"""How fast models wrote and read on this computer: a small JSON file of the last answers of each."""

import json
import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from app.settings.paths import write_atomically

if TYPE_CHECKING:
    from engine import Finished

log = logging.getLogger(__name__)

LEAST_TOKENS = 16
"""Shorter answers say nothing of a speed."""
LEAST_READ = 64
"""Nor do shorter prompts."""
_LAST = 5
_MOST_MODELS = 500


@dataclass(frozen=True, slots=True)
class Speed:
    """What was measured of one model file."""

    tok_s: float
    """The median of its last answers."""
    read_tok_s: float
    """The same of prompts, 0 where all were short."""
    answers: int
    """How many these are."""
    device: str
    """What computed them."""
    at: float
    """When the last one ended, in seconds since 1970."""


class SpeedStore:
    """Reads and writes the file; for any thread, and for several processes one after the other."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()

    def all(self) -> dict[Path, Speed]:
        """What is known of every model; a file that is damaged says nothing."""
        found = {Path(path): _speed(entry) for path, entry in self._read().items()}
        return {path: speed for path, speed in found.items() if speed is not None}

    def note(self, model: Path, device: str, tok_s: float, tokens: int, read_tok_s: float = 0.0) -> None:
        """Remember an answer's speed; what cannot be written is only logged.

        device: what computed it: what another device measured is forgotten. read_tok_s: at what speed its
        prompt was read, 0 where that is not known.
        """
        if tokens < LEAST_TOKENS or not 0.0 < tok_s < 1e6:
            return
        with self._lock:
            entries = self._read()
            known = entries.pop(str(model), None)
            if _speed(known) is None or known["device"] != device:
                known = {}
            read = [round(read_tok_s, 2)] if 0.0 < read_tok_s < 1e9 else []
            entries[str(model)] = {
                "device": device,
                "tok_s": [*known.get("tok_s", ()), round(tok_s, 2)][-_LAST:],
                "read_tok_s": [*known.get("read_tok_s", ()), *read][-_LAST:],
                "at": round(time.time()),
            }
            newest = dict(list(entries.items())[-_MOST_MODELS:])
            try:
                write_atomically(self._file, json.dumps({"models": newest}, indent=1))
            except OSError as error:
                log.warning("the speed of an answer is not kept: %s", error)

    def _read(self) -> dict[str, Any]:
        try:
            kept = json.loads(self._file.read_text(encoding="utf-8"))
            models = kept["models"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return {}
        return models if isinstance(models, dict) else {}


def _speed(entry: Any) -> Speed | None:
    try:
        speeds = [float(speed) for speed in entry["tok_s"]]
        read = [float(speed) for speed in entry.get("read_tok_s", ())]
        read_tok_s = median(read) if read else 0.0
        return Speed(median(speeds), read_tok_s, len(speeds), str(entry["device"]), float(entry["at"]))
    except (TypeError, ValueError, KeyError, AttributeError):
        return None


def reading_speed(finished: "Finished") -> float:
    """Tokens a second at which an answer's prompt was read; 0 where it was short or kept from before."""
    read = finished.prompt_tokens - finished.cached_tokens
    if finished.ttft_ms is None or read < LEAST_READ:
        return 0.0
    milliseconds = finished.ttft_ms - finished.queue_ms
    return read / milliseconds * 1e3 if milliseconds > 0 else 0.0
