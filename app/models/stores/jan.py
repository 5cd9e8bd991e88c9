"""Jan: `llamacpp/models/MODEL/model.gguf` in its data folder, or where a model's `model.yml` says."""

import re
from collections.abc import Iterator
from pathlib import Path

from app.models.stores.store import Store, StoredModel, files_below, read_object
from app.models.stores.surroundings import Surroundings

_USUAL_FILE = "model"
_ELSEWHERE = re.compile(r"^model_path:\s*(['\"]?)(.+?)\1\s*$", re.MULTILINE)
_LONGEST_RECORD = 1 << 16


def folders(around: Surroundings) -> list[Path]:
    """The models in its data folder: what its variable or settings name, the usual, the former one."""
    data = around.folder("JAN_DATA_FOLDER")
    for base in (around.data, around.config):
        chosen = read_object(base / "Jan" / "settings.json").get("data_folder")
        if isinstance(chosen, str) and chosen.strip():
            data.append(Path(chosen).expanduser())
    data += [around.data / "Jan" / "data", around.config / "Jan" / "data", around.home / "jan"]
    return [folder / below for folder in data for below in ("llamacpp/models", "models")]


def models(folder: Path) -> Iterator[StoredModel]:
    """A file called `model` has its folder's name."""
    for model in files_below(folder):
        usual = model.path.stem == _USUAL_FILE and model.path.parent != folder
        name = model.name.removesuffix(f"/{_USUAL_FILE}") if usual else model.name
        yield StoredModel(model.path, name)
    for record in sorted(folder.glob("**/model.yml")):
        path = _imported(record, folder)
        if path is not None and not path.is_relative_to(folder):
            yield StoredModel(path, record.parent.relative_to(folder).as_posix())


def _imported(record: Path, folder: Path) -> Path | None:
    """The file that a record names, below the data folder where it is no whole path."""
    try:
        with record.open("rb") as file:
            found = _ELSEWHERE.search(file.read(_LONGEST_RECORD).decode("utf-8", "replace"))
    except OSError:
        return None
    data = folder.parent.parent if folder.parent.name == "llamacpp" else folder.parent
    return data / found[2] if found is not None else None


STORE = Store("jan", "Jan", folders, models)
