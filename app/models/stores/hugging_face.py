"""The cache of Hugging Face's own tools: `models--OWNER--REPO/snapshots/REVISION/FILE`, links to blobs."""

from collections.abc import Iterator
from pathlib import Path

from app.models.stores.store import Store, StoredModel
from app.models.stores.surroundings import Surroundings

_PREFIX = "models--"


def folders(around: Surroundings) -> list[Path]:
    """As `huggingface_hub` looks for it."""
    home = around.folder("XDG_CACHE_HOME", "huggingface") or [around.home / ".cache" / "huggingface"]
    named = around.folder("HF_HUB_CACHE") + around.folder("HUGGINGFACE_HUB_CACHE")
    return (named + around.folder("HF_HOME", "hub") + [home[0] / "hub"])[:1]


def models(folder: Path) -> Iterator[StoredModel]:
    """The files of every repository; of a file in several revisions, that of the newest comes first."""
    from engine import model_paths

    for repository in sorted(folder.glob(f"{_PREFIX}*")):
        name = repository.name.removeprefix(_PREFIX).replace("--", "/")
        for snapshot in _snapshots(repository):
            for path in model_paths(snapshot):
                yield StoredModel(path, f"{name}/{path.relative_to(snapshot).with_suffix('').as_posix()}")


def _snapshots(repository: Path) -> list[Path]:
    """What `main` is first, then by age."""
    try:
        main = (repository / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        main = ""
    found = [path for path in (repository / "snapshots").glob("*") if path.is_dir()]
    return sorted(found, key=lambda path: (path.name != main, -path.stat().st_mtime, path.name))


STORE = Store("hugging-face", "Hugging Face", folders, models)
