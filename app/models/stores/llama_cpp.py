"""llama.cpp's cache: files under their own names, or laid out as Hugging Face's tools do."""

from collections.abc import Iterator
from pathlib import Path

from app.models.stores import hugging_face
from app.models.stores.store import Store, StoredModel, files_below
from app.models.stores.surroundings import Surroundings


def folders(around: Surroundings) -> list[Path]:
    """What its variable names, and the usual cache."""
    return [*around.folder("LLAMA_CACHE"), around.cache / "llama.cpp"]


def models(folder: Path) -> Iterator[StoredModel]:
    """Repositories first, which have better names."""
    yield from hugging_face.models(folder)
    yield from files_below(folder)


STORE = Store("llama.cpp", "llama.cpp", folders, models)
