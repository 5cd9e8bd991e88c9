"""Which model files there are in a folder, and what a picker shows of each, read from headers only.

Vocabulary arrays are skipped, tensors never touched. Headers are skimmed: what a picker shows of a
file made to deceive may be wrong, and loading, which reads all of the header, then refuses it.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import prod
from operator import attrgetter
from pathlib import Path
from typing import Any

from engine.api.errors import ModelFileError
from engine.api.recommended import check_sampling
from engine.footprint.shape import Footprint, read_footprint
from engine.gguf.file import GGUFFile, open_gguf
from engine.gguf.labels import quantization_label
from engine.gguf.split import parse_part_name
from engine.model.config import read_config
from engine.model.tensors import check_tensors
from kernels.quant.formats import DEQUANTIZABLE, GGMLType

MAX_FOLDER_DEPTH = 6
MAX_FILES = 10_000
_MAX_NAME = 120
_NOT_CHAT = {"clip": "an image projector", "mmproj": "an image projector"}
_KINDS = {"adapter": "an adapter (LoRA)", "mmproj": "an image projector", "imatrix": "an importance matrix"}
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
"""By its name behind `general.sampling.`: that of `SamplingParams`."""
_ANSWER_LIMIT = "tui_chat.sampling.max_tokens"
"""The most tokens of an answer, for which files have no key that others know."""
_shape = attrgetter("shape")
_UNUSED_SAMPLING = ("penalty_last_n", "xtc_probability", "mirostat", "sequence")
"""Those that have none."""


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
    type_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes by element type, the most first."""
    license: str = ""
    tokenizer: str = ""
    """Its kind, such as "gpt2 (qwen2)"."""
    has_template: bool = False
    """Whether the file brings a chat template."""
    sampling: Mapping[str, float] = field(default_factory=dict)
    """What its makers recommend, by the names of `SamplingParams`."""
    sampling_ignored: Sequence[str] = ()
    """Why some of what they recommend cannot be used, a few words each."""
    footprint: Footprint | None = None
    """What it will take of a device; None where it cannot be loaded."""

    def as_data(self) -> dict[str, Any]:
        """Itself without its path, as JSON can hold it, for `from_data`."""
        data = {part.name: getattr(self, part.name) for part in fields(self) if part.name != "path"}
        return data | {"footprint": self.footprint and self.footprint.as_data()}

    @classmethod
    def from_data(cls, path: Path, data: Mapping[str, Any]) -> "ModelSummary":
        """Read what `as_data` gave; raises what bad data raises."""
        footprint = data["footprint"]
        read = {
            "footprint": None if footprint is None else Footprint.from_data(footprint),
            "sampling_ignored": tuple(data["sampling_ignored"]),
        }
        return cls(path=path, **{**data, **read})


def summarize(path: str | Path) -> ModelSummary:
    """The summary of one model file; never raises for a broken file, `problem` says why."""
    path = Path(path).expanduser()
    try:
        return _describe_file(path, skim=True)
    except ModelFileError:
        # A skimmed header may be wrong about a good file, and its error wrong about a bad one.
        pass
    try:
        return _describe_file(path, skim=False)
    except ModelFileError as error:
        text = _without_path(str(error), path)
        return ModelSummary(path, path.stem, "", _size(path), "", None, 0, None, False, text, 1)


def recommended_sampling(path: Path) -> tuple[Mapping[str, float], Sequence[str]]:
    """What a file recommends, as `ModelSummary` has it; nothing where it cannot be read."""
    try:
        with open_gguf(path, skim=True) as file:
            return _sampling(file)
    except ModelFileError:
        return {}, ()


def model_paths(folder: str | Path) -> list[Path]:
    """The .gguf files in a folder and its subfolders, sorted, of a split model the first part that is there.

    A folder that does not exist or cannot be read holds none. Looks MAX_FOLDER_DEPTH folders deep;
    hidden folders and files are left out, links to folders are not followed.
    """
    return _first_parts(sorted(_gguf_paths(Path(folder).expanduser())))


def part_paths(path: Path) -> list[Path]:
    """All files of a model, of which one is named, whether they are there or not."""
    part = parse_part_name(path)
    return [path] if part is None else [part.sibling(number) for number in range(1, part.count + 1)]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return 0


def _describe_file(path: Path, *, skim: bool) -> ModelSummary:
    with open_gguf(path, skim=skim) as file:
        return _describe(file)


def _describe(file: GGUFFile) -> ModelSummary:
    problem = _problem(file)
    context, kv_bytes, footprint = None, None, None
    if problem is None:
        try:
            config = read_config(file)
            context = config.context_length
            kv_bytes = 2 * config.kv_values
            footprint = read_footprint(file, config, check_tensors(file, config))
        except ModelFileError as error:
            problem = _without_path(str(error), file.path)
    sampling, ignored = _sampling(file)
    return ModelSummary(
        path=file.path,
        name=_printable(file.string("general.name", "")) or file.path.stem,
        architecture=_printable(file.architecture),
        size_bytes=file.size_bytes,
        quantization=quantization_label(file),
        context_length=context if context is not None else _positive(file, "context_length"),
        parameters=sum(map(prod, map(_shape, file.tensors.values()))),
        kv_bytes_per_token_f16=kv_bytes,
        supported=problem is None,
        problem=problem,
        parts=len(file.parts),
        type_bytes=_type_bytes(file),
        license=_text(file, "general.license"),
        tokenizer=_tokenizer(file),
        has_template="tokenizer.chat_template" in file.metadata,
        sampling=sampling,
        sampling_ignored=ignored,
        footprint=footprint,
    )


def _problem(file: GGUFFile) -> str | None:
    kind = _KINDS.get(file.string("general.type", "model")) or _NOT_CHAT.get(file.architecture)
    if kind:
        return f"This is {kind}, not a language model."
    if not file.architecture:
        return "general.architecture is missing, so this is no language model."
    if not file.tensors:
        return "The file holds a vocabulary but no weights."
    unsupported = {info.type for info in file.tensors.values()} - DEQUANTIZABLE
    if unsupported:
        return f"Tensors of type {', '.join(sorted(kind.name for kind in unsupported))} are not supported."
    return None


def _positive(file: GGUFFile, key: str) -> int | None:
    value = file.metadata.get(f"{file.architecture}.{key}")
    return value if isinstance(value, int) and value > 0 else None


def _type_bytes(file: GGUFFile) -> dict[str, int]:
    nbytes: Counter[GGMLType] = Counter()
    for info in file.tensors.values():
        nbytes[info.type] += info.nbytes
    return {kind.name: total for kind, total in nbytes.most_common()}


def _tokenizer(file: GGUFFile) -> str:
    kind, pre = _text(file, "tokenizer.ggml.model"), _text(file, "tokenizer.ggml.pre")
    return f"{kind} ({pre})" if kind and pre else kind


def _sampling(file: GGUFFile) -> tuple[Mapping[str, float], Sequence[str]]:
    given = {key: file.metadata.get(f"general.sampling.{key}") for key in (*_SAMPLING, *_UNUSED_SAMPLING)}
    given["max_tokens"] = file.metadata.get(_ANSWER_LIMIT)
    plain = {key: value for key, value in given.items() if isinstance(value, int | float | str)}
    return check_sampling(plain, _SAMPLING | {"max_tokens": "max_tokens"})


def _text(file: GGUFFile, key: str) -> str:
    """A text that is only shown: one of another type is none."""
    value = file.metadata.get(key)
    return _printable(value) if isinstance(value, str) else ""


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
