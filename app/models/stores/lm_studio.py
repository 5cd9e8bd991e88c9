"""LM Studio: `models/PUBLISHER/REPO/FILE` in its home, or where its settings say."""

from pathlib import Path

from app.models.stores.store import Store, files_below, read_object
from app.models.stores.surroundings import Surroundings


def folders(around: Surroundings) -> list[Path]:
    """Of its home, which a file names where it was moved, and of the home of older versions."""
    found = []
    for home in (*_moved(around.home), around.home / ".lmstudio", around.home / ".cache" / "lm-studio"):
        chosen = read_object(home / "settings.json").get("downloadsFolder")
        if isinstance(chosen, str) and chosen.strip():
            found.append(Path(chosen).expanduser())
        found.append(home / "models")
    return found


def _moved(home: Path) -> list[Path]:
    try:
        lines = (home / ".lmstudio-home-pointer").read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError):
        return []
    return [Path(lines[0].strip()).expanduser()] if lines[0].strip() else []


STORE = Store("lm-studio", "LM Studio", folders, files_below)
