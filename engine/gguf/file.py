"""A GGUF model as one object, whether it lies in one file or is split over several."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import overload

import numpy as np

from engine.api.errors import ModelFileError
from engine.gguf.header import Header, TensorInfo, parse_header
from engine.gguf.metadata import Metadata
from engine.gguf.source import Source
from engine.gguf.split import PartName, parse_part_name

__all__ = ["GGUFFile", "TensorInfo", "open_gguf"]


class GGUFFile:
    """An open model file: metadata, tensor descriptions and tensor bytes, read when they are asked for.

    Metadata comes from the first part.
    """

    def __init__(self, headers: list[Header]) -> None:
        first = headers[0]
        self.path: Path = first.source.path
        self.version: int = first.version
        self.parts: tuple[Path, ...] = tuple(header.source.path for header in headers)
        self.size_bytes: int = sum(header.source.size for header in headers)
        self._metadata = first.metadata
        self._sources = [header.source for header in headers]
        self._overlaps = {name: other for header in headers for name, other in header.overlaps.items()}
        self.tensors: Mapping[str, TensorInfo] = _merge(headers)

    @property
    def metadata(self) -> Metadata:
        """Key to value; arrays are decoded on first access (strings: list, numbers: numpy array)."""
        return self._metadata

    @property
    def architecture(self) -> str:
        """The architecture's name, such as "llama"; "" when the file does not say it."""
        return self._metadata.string("general.architecture", "")

    @overload
    def string(self, key: str, default: str) -> str: ...
    @overload
    def string(self, key: str, default: None = None) -> str | None: ...
    def string(self, key: str, default: str | None = None) -> str | None:
        """The text at `key`, or `default`; ModelFileError when the value has another type."""
        return self._metadata.string(key, default)

    @overload
    def integer(self, key: str, default: int) -> int: ...
    @overload
    def integer(self, key: str, default: None = None) -> int | None: ...
    def integer(self, key: str, default: int | None = None) -> int | None:
        """The integer at `key`, or `default`; ModelFileError when the value has another type."""
        return self._metadata.integer(key, default)

    @overload
    def number(self, key: str, default: float) -> float: ...
    @overload
    def number(self, key: str, default: None = None) -> float | None: ...
    def number(self, key: str, default: float | None = None) -> float | None:
        """The number at `key` as a float, or `default`; ModelFileError for another type."""
        return self._metadata.number(key, default)

    @overload
    def boolean(self, key: str, default: bool) -> bool: ...
    @overload
    def boolean(self, key: str, default: None = None) -> bool | None: ...
    def boolean(self, key: str, default: bool | None = None) -> bool | None:
        """The boolean at `key`, or `default`; ModelFileError when the value has another type."""
        return self._metadata.boolean(key, default)

    def strings(self, key: str) -> list[str]:
        """The strings at `key`, [] when it is absent; ModelFileError for another type."""
        return self._metadata.strings(key)

    def numbers(self, key: str) -> np.ndarray:
        """The numbers at `key` as a read-only 1-D array, empty when absent; else ModelFileError."""
        return self._metadata.numbers(key)

    def tensor_bytes(self, name: str) -> np.ndarray:
        """The raw bytes of a tensor: uint8 [nbytes]; raises what `stored` and reading it raise."""
        stored = self.stored(name)
        raw = np.empty(stored.nbytes, dtype=np.uint8)
        stored.read_into(raw)
        return raw

    def stored(self, name: str) -> "StoredTensor":
        """Where a tensor's bytes are, to be read while the file is open.

        Raises ModelFileError when there is no such tensor, when it shares bytes with another one, or
        when the file was closed.
        """
        info = self.tensors.get(name)
        if info is None:
            raise ModelFileError(f"{self.path}: the file has no tensor {name!r}.")
        if name in self._overlaps:
            raise ModelFileError(
                f"{self.parts[info.part]}: tensor {name!r} at byte {info.offset}: overlaps tensor "
                f"{self._overlaps[name]!r}; the file is damaged, download it again."
            )
        source = self._sources[info.part]
        if source.closed:
            raise ModelFileError(
                f"{self.path}: tensor {name!r} was asked for after the file had been closed."
            )
        return StoredTensor(source, name, info.offset, info.nbytes)

    @property
    def version_read(self) -> tuple[tuple[int, int], ...]:
        """Size and time of the last change of each part, as they were when it was opened."""
        return tuple(source.version for source in self._sources)

    def check_unchanged(self) -> None:
        """Raise ModelFileError when a part was written to since it was opened."""
        for source in self._sources:
            source.check_unchanged()

    def close(self) -> None:
        """Let go of the file. Decoded metadata and arrays already handed out stay valid."""
        self._metadata.close()
        for source in self._sources:
            source.close()

    def __enter__(self) -> "GGUFFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor's bytes in an open file."""

    source: Source
    name: str
    offset: int
    nbytes: int

    def part(self, first: int, nbytes: int) -> "StoredTensor":
        """Some of the bytes, from `first` on."""
        assert 0 <= first <= first + nbytes <= self.nbytes, (self.name, first, nbytes)
        return StoredTensor(self.source, self.name, self.offset + first, nbytes)

    def read_into(self, target: np.ndarray, start: int = 0) -> None:
        """Fill `target`, uint8 [n], with the bytes from `start` on; ModelFileError where they are gone.

        May be called by several threads.
        """
        self.source.read_into(target, f"tensor {self.name!r}", self.offset + start)


def open_gguf(path: str | Path, *, skim: bool = False) -> GGUFFile:
    """Open a model; of a split model any part may be named. `skim`: see `parse_header`.

    Raises ModelFileError, which names file, field and byte offset, when the file or one of its parts
    is missing, broken or no GGUF file.
    """
    path = Path(path).expanduser()
    header = parse_header(path, skim=skim)
    count = _split_count(header)
    if count <= 1:
        return GGUFFile([header])
    name = parse_part_name(path)
    if name is None or name.count != count:
        raise ModelFileError(
            f"{path}: split.count says that this is one of {count} parts, so its name must end in "
            f"-00001-of-{count:05d}.gguf or the like; give all parts their original names."
        )
    _check_part(header, name, name.number)
    headers = [_open_part(name, number, skim) for number in range(1, count + 1)]
    _check_total(headers)
    return GGUFFile(headers)


def _split_count(header: Header) -> int:
    return header.metadata.integer("split.count", 0)


def _open_part(name: PartName, number: int, skim: bool) -> Header:
    part = name.sibling(number)
    if not part.exists():
        raise ModelFileError(
            f"{part}: part {number} of {name.count} is missing; download it into the same folder."
        )
    header = parse_header(part, part=number - 1, skim=skim)
    _check_part(header, name, number)
    return header


def _check_part(header: Header, name: PartName, number: int) -> None:
    count = _split_count(header)
    if count != name.count:
        raise ModelFileError(
            f"{header.source.path}: split.count is {count} but the name says {name.count}; the parts do not "
            "belong together."
        )
    index = header.metadata.integer("split.no", -1)
    if index != number - 1:
        raise ModelFileError(
            f"{header.source.path}: split.no is {index} but part {number} must have {number - 1}; the part "
            "was renamed or is damaged."
        )


def _check_total(headers: list[Header]) -> None:
    metadata = headers[0].metadata
    expected = metadata.integer("split.tensors.count")
    found = sum(len(header.tensors) for header in headers)
    if expected is not None and expected != found:
        raise ModelFileError(
            f"{headers[0].source.path}: split.tensors.count is {expected} but the {len(headers)} parts hold "
            f"{found} tensors; they do not belong together."
        )


def _merge(headers: list[Header]) -> dict[str, TensorInfo]:
    if len(headers) == 1:
        return headers[0].tensors
    merged: dict[str, TensorInfo] = {}
    for header in headers:
        for name, info in header.tensors.items():
            if name in merged:
                raise ModelFileError(
                    f"{header.source.path}: tensor {name!r} also occurs in part {merged[name].part + 1}."
                )
            merged[name] = info
    return merged
