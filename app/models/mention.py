"""Saying once, and never again, where models come from, to who has none but the built-in one."""

from pathlib import Path

from app.models.found import ModelSearch, find
from app.settings.paths import private_directory


def is_due(mark: Path, search: ModelSearch) -> bool:
    """Tell whether it has not been said, and only the built-in model is there. Reads files."""
    return not mark.exists() and len(find(search)) == 1


def remember(mark: Path) -> bool:
    """Keep that it has been said; False where that cannot be kept, so that it would be said every time."""
    try:
        private_directory(mark.parent)
        mark.touch()
    except OSError:
        return False
    return True
