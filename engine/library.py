"""Which model files there are: folders in, summaries out. Reads headers only; imports no torch."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.catalog import ModelSummary


def list_models(folders: Iterable[Path], files: Iterable[Path] = ()) -> list["ModelSummary"]:
    """Describe the single files first, then every folder's models, by path within a folder.

    A folder that does not exist or cannot be read holds no models; a file that is reached twice is
    listed once. A broken file is listed with its problem.
    """
    from engine.catalog import scan_folder, summarize

    found = [summarize(path) for path in files]
    for folder in folders:
        if folder.is_dir():
            found += scan_folder(folder)
    unique = {_identity(model.path): model for model in reversed(found)}
    return list(unique.values())[::-1]


def _identity(path: str | Path) -> Path:
    return Path(path).resolve()
