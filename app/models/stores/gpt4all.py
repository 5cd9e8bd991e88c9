"""GPT4All: files in one folder, of the app or of its Python library."""

from pathlib import Path

from app.models.stores.store import Store, StoredModel, files_below
from app.models.stores.surroundings import Surroundings

_UNFINISHED = "incomplete-"


def folders(around: Surroundings) -> list[Path]:
    """What its settings name, the usual, and that of the library."""
    homes = (around.config / "nomic.ai", around.home / ".config" / "nomic.ai")
    chosen = [path for home in homes for path in _chosen(home / "GPT4All.ini")]
    return [*chosen, around.local_data / "nomic.ai" / "GPT4All", around.home / ".cache" / "gpt4all"]


def models(folder: Path) -> list[StoredModel]:
    """Without what is still fetched."""
    return [model for model in files_below(folder) if not model.path.name.startswith(_UNFINISHED)]


def _chosen(settings: Path) -> list[Path]:
    try:
        lines = settings.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []
    values = [line.partition("=")[2].strip() for line in lines if line.startswith("modelPath=")]
    return [Path(value).expanduser() for value in values if value]


STORE = Store("gpt4all", "GPT4All", folders, models)
