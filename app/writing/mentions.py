"""What stands behind an @ that is being written, and the files and folders that it may become."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from app.settings.fuzzy import fit_score

CHAT = "chat:"
"""Behind an @ it begins the name of another chat."""
_MENTION = re.compile(r"(?:\A|(?<=\s))@((?:\\.|[^\s\\@])*)\Z")
_MOST_READ, _MOST_SHOWN = 5_000, 200


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder that a mention may become; `written` is how it is written behind the @."""

    written: str
    path: Path
    is_folder: bool


def mention_before(before: str) -> str | None:
    """Return what stands behind the @ just before the cursor, as it is written, or None."""
    found = _MENTION.search(before)
    return found[1] if found else None


def plain_path(written: str) -> str:
    """Return a path as it is written, without its backslashes."""
    return re.sub(r"\\(.)", r"\1", written)


def entries(written: str, start: Path) -> list[Entry]:
    """List what a path that is being written may become, the best first; relative paths begin at `start`.

    What cannot be read has no entries.
    """
    head, slash, letters = plain_path(written).rpartition("/")
    folder = _resolved(head + slash, start)
    found: list[tuple[float, Entry]] = []
    try:
        with os.scandir(folder) as listed:
            for number, item in enumerate(listed):
                if number >= _MOST_READ:
                    break
                if item.name.startswith(".") and not letters.startswith("."):
                    continue
                score = fit_score(letters, item.name) if letters.strip() else 1.0
                if score > 0:
                    found.append((score, _entry(head + slash, item)))
    except (OSError, ValueError):
        return []
    found.sort(key=lambda pair: (-pair[0], not pair[1].is_folder, pair[1].written.casefold()))
    return [entry for _, entry in found[:_MOST_SHOWN]]


def _entry(head: str, item: "os.DirEntry[str]") -> Entry:
    is_folder = item.is_dir()
    written = re.sub(r"([\s\\@])", r"\\\1", head + item.name) + ("/" if is_folder else "")
    return Entry(written, Path(item.path), is_folder)


def _resolved(head: str, start: Path) -> Path:
    try:
        path = Path(head).expanduser()
    except RuntimeError:
        # ~name of nobody.
        path = Path(head)
    return path if path.is_absolute() else start / path
