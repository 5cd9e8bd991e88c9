"""Which programs serve on this computer: each notes its address in a folder while its door is open."""

import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from app.settings.paths import private_directory, write_atomically

log = logging.getLogger(__name__)

_SUFFIX = ".json"
_ANSWERS_WITHIN = 1.0


@contextmanager
def noted(folder: Path, address: str) -> Iterator[None]:
    """Have an address be found while this program serves there."""
    file = folder / f"{os.getpid()}{_SUFFIX}"
    try:
        private_directory(folder)
        write_atomically(file, json.dumps({"address": address, "since": time.time()}))
    except OSError as error:
        log.warning("%s: not noted that %s is served (%s)", file, address, error)
    try:
        yield
    finally:
        with suppress(OSError):
            file.unlink()


def open_doors(folder: Path) -> list[str]:
    """Return the addresses that are served now, the newest first; what a killed program left is removed."""
    found: list[tuple[float, str]] = []
    for file in folder.glob(f"*{_SUFFIX}"):
        try:
            note = json.loads(file.read_text(encoding="utf-8"))
            since, address = float(note["since"]), str(note["address"])
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            continue
        if _answers(address):
            found.append((since, address))
        else:
            with suppress(OSError):
                file.unlink()
    return [address for _, address in sorted(found, reverse=True)]


def _answers(address: str) -> bool:
    try:
        place = urlsplit(address)
        with socket.create_connection((place.hostname or "", place.port or 0), _ANSWERS_WITHIN):
            return True
    except (OSError, ValueError):
        return False
