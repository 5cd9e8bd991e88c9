"""Which model files there are, and what a picker shows of each, read from headers only.

Vocabulary arrays are skipped, tensors never touched. Headers are skimmed: what a picker shows of a
file made to deceive may be wrong, and loading, which reads all of the header, then refuses it.
Summaries are remembered by file identity, size and time of change, so that showing a folder again
costs one `stat` a file.
"""

import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from threading import Lock

from engine.api.errors import ModelFileError
from engine.gguf.file import GGUFFile, open_gguf
from engine.gguf.labels import quantization_label
from engine.gguf.split import parse_part_name
from engine.model.config import read_config
from kernels.quant.formats import DEQUANTIZABLE

MAX_FOLDER_DEPTH = 6
MAX_FILES = 10_000
_MAX_NAME = 120
_MAX_REMEMBERED = 4096
_NOT_CHAT = {"clip": "an image projector", "mmproj": "an image projector"}
_KINDS = {"adapter": "an adapter (LoRA)", "mmproj": "an image projector", "imatrix": "an importance matrix"}


@dataclass(frozen=True)
class ModelSummary:
    """One model file at a glance; `problem` says in a sentence why it is not `supported`.

    Sizes are in bytes. A broken file has no architecture and zero parameters.
    """

    path: Path
    name: str
    architecture: str
    size_bytes: int
    quantization: str
    context_length: int | None
    parameters: int
    kv_bytes_per_token_f16: int | None
    supported: bool
    problem: str | None
    parts: int


_Identity = tuple[int, int, int, int]
_remembered: "OrderedDict[_Identity, ModelSummary]" = OrderedDict()
_lock = Lock()


def list_models(folders: Iterable[Path], files: Iterable[Path] = ()) -> list[ModelSummary]:
    """Describe the single files first, then every folder's models, by path within a folder.

    A folder that does not exist or cannot be read holds no models; a file that is reached twice is
    listed once. A broken file is listed with its problem.
    """
    found = [summarize(path) for path in files]
    for folder in folders:
        if folder.is_dir():
            found += scan_folder(folder)
    unique = {model.path.resolve(): model for model in reversed(found)}
    return list(unique.values())[::-1]


def summarize(path: str | Path) -> ModelSummary:
    """The summary of one model file; never raises for a broken file, `problem` says why."""
    path = Path(path).expanduser()
    identity = _identity(path)
    with _lock:
        known = _remembered.get(identity) if identity else None
    if known is not None:
        return replace(known, path=path, name=known.name or path.stem)
    summary = _read(path)
    # What other files say (the further parts of a split model) can change unseen: not remembered.
    if identity and summary.parts == 1 and summary.supported:
        with _lock:
            _remembered[identity] = summary
            if len(_remembered) > _MAX_REMEMBERED:
                _remembered.popitem(last=False)
    return replace(summary, name=summary.name or path.stem)


def scan_folder(folder: str | Path) -> list[ModelSummary]:
    """Summaries of the .gguf files in a folder and its subfolders, sorted by path.

    A split model counts once. Image projectors and folders that cannot be read are left out; a
    broken file is listed with its problem. Looks MAX_FOLDER_DEPTH folders deep.
    """
    paths = _first_parts(sorted(_gguf_paths(Path(folder).expanduser())))
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        summaries = list(pool.map(summarize, paths))
    return [summary for summary in summaries if not _is_projector(summary)]


def _identity(path: Path) -> _Identity | None:
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _read(path: Path) -> ModelSummary:
    try:
        return _describe_file(path, skim=True)
    except ModelFileError:
        # A skimmed header may be wrong about a good file, and its error wrong about a bad one.
        pass
    try:
        return _describe_file(path, skim=False)
    except ModelFileError as error:
        size = (_identity(path) or (0, 0, 0, 0))[2]
        text = _without_path(str(error), path)
        return ModelSummary(path, "", "", size, "", None, 0, None, False, text, 1)


def _describe_file(path: Path, *, skim: bool) -> ModelSummary:
    with open_gguf(path, skim=skim) as file:
        return _describe(file)


def _describe(file: GGUFFile) -> ModelSummary:
    problem = _problem(file)
    context, kv_bytes = None, None
    if problem is None:
        try:
            config = read_config(file)
            context = config.context_length
            kv_bytes = 2 * config.kv_values
        except ModelFileError as error:
            problem = _without_path(str(error), file.path)
    return ModelSummary(
        path=file.path,
        name=_printable(file.string("general.name", "")),
        architecture=_printable(file.architecture),
        size_bytes=file.size_bytes,
        quantization=quantization_label(file),
        context_length=context if context is not None else _positive(file, "context_length"),
        parameters=sum(prod(info.shape) for info in file.tensors.values()),
        kv_bytes_per_token_f16=kv_bytes,
        supported=problem is None,
        problem=problem,
        parts=len(file.parts),
    )


def _problem(file: GGUFFile) -> str | None:
    kind = _KINDS.get(file.string("general.type", "model")) or _NOT_CHAT.get(file.architecture)
    if kind:
        return f"This is {kind}, not a language model."
    if not file.architecture:
        return "general.architecture is missing, so this is no language model."
    if not file.tensors:
        return "The file holds a vocabulary but no weights."
    unsupported = sorted({i.type.name for i in file.tensors.values() if i.type not in DEQUANTIZABLE})
    if unsupported:
        return f"Tensors of type {', '.join(unsupported)} are not supported."
    return None


def _positive(file: GGUFFile, key: str) -> int | None:
    value = file.metadata.get(f"{file.architecture}.{key}")
    return value if isinstance(value, int) and value > 0 else None


def _is_projector(summary: ModelSummary) -> bool:
    return not summary.supported and "image projector" in (summary.problem or "")


def _printable(text: str) -> str:
    """Text from a file as one short line that cannot disturb a terminal."""
    line = " ".join(text[: 4 * _MAX_NAME].split())
    return "".join(char for char in line if char.isprintable())[:_MAX_NAME]


def _without_path(text: str, path: Path) -> str:
    return text.removeprefix(f"{path}: ")


def _gguf_paths(folder: Path) -> Iterator[Path]:
    """Paths of .gguf files below `folder`; links to folders are not followed, so there are no loops."""
    found = 0
    top = len(folder.parts)
    for root, folders, names in os.walk(folder):
        if len(Path(root).parts) - top >= MAX_FOLDER_DEPTH:
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.lower().endswith(".gguf") and not name.startswith("."):
                yield Path(root, name)
                found += 1
                if found >= MAX_FILES:
                    return


def _first_parts(paths: list[Path]) -> list[Path]:
    """One path per model: of a split model the first part that is there."""
    seen: set[tuple[Path, str, int]] = set()
    firsts = []
    for path in paths:
        part = parse_part_name(path)
        if part is not None:
            model = (part.folder, part.stem, part.count)
            if model in seen:
                continue
            seen.add(model)
        firsts.append(path)
    return firsts
