"""Reading the header of one GGUF file: metadata and the list of tensors, checked before use.

Layout (little-endian): magic, version, number of tensors, number of metadata entries, the entries,
the tensor descriptions, padding, tensor data.
"""

import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NamedTuple

from engine.api.errors import UnsupportedModelError
from engine.gguf.foreign import refuse_foreign
from engine.gguf.metadata import MAX_KEY_BYTES, Budget, Metadata, parse_value
from engine.gguf.source import Source, open_source
from engine.gguf.usual import MAX_DIMENSIONS, MOST_OF_TENSOR, PIECE, usual_entry, usual_tensor
from kernels.quant.formats import FORMATS, GGMLType

DEFAULT_ALIGNMENT = 32
MAX_ENTRIES = 1 << 16
MAX_TENSORS = 1 << 18
MAX_TENSOR_NAME_BYTES = 1024
_SMALLEST_ENTRY = 8 + 1 + 4 + 1
_SMALLEST_TENSOR = 8 + 1 + 4 + 4 + 8
_FIXED = struct.Struct("<4sIQQ")
_KNOWN = {int(kind): (kind, FORMATS[kind].elements, FORMATS[kind].nbytes) for kind in GGMLType}
"""By the number of a type: itself, and elements and bytes of its blocks."""
_OTHER_TYPES = {
    4: "Q4_2 (removed from the format)",
    5: "Q4_3 (removed from the format)",
    31: "Q4_0_4_4 (removed from the format; use a Q4_0 file)",
    32: "Q4_0_4_8 (removed from the format; use a Q4_0 file)",
    33: "Q4_0_8_8 (removed from the format; use a Q4_0 file)",
    36: "IQ4_NL_4_4 (removed from the format; use an IQ4_NL file)",
    37: "IQ4_NL_4_8 (removed from the format; use an IQ4_NL file)",
    38: "IQ4_NL_8_8 (removed from the format; use an IQ4_NL file)",
    41: "Q1_0",
    42: "Q2_0",
}


class TensorInfo(NamedTuple):
    """Where a tensor lies: `shape` outermost dimension first, `offset` from the start of its part."""

    name: str
    shape: tuple[int, ...]
    type: GGMLType
    offset: int
    nbytes: int
    part: int


@dataclass(frozen=True, slots=True)
class Header:
    """A checked header; every tensor's bytes lie within `source`.

    `overlaps` maps a tensor that shares bytes with another one to that one's name.
    """

    source: Source
    version: int
    alignment: int
    metadata: Metadata
    tensors: dict[str, TensorInfo]
    overlaps: dict[str, str]


def parse_header(path: str | Path, part: int = 0, *, skim: bool = False) -> Header:
    """Read and check the header of one file; `part` is noted in its tensors.

    Array values are located but not decoded. With `skim` the ends of long string arrays are guessed,
    which is quick and usually right, and the system reads nothing ahead; a header that must be right, or
    whose weights are read too, is read without it. Raises
    ModelFileError for a file that is broken or no GGUF file, UnsupportedModelError for a version or
    tensor type not supported here.
    """
    source = open_source(path, sparsely=skim)
    try:
        return _parse(source, part, skim)
    except BaseException:
        source.close()
        raise


def _parse(source: Source, part: int, skim: bool) -> Header:
    refuse_foreign(source)
    source.need("header", 0, _FIXED.size)
    _, version, n_tensors, n_entries = _FIXED.unpack(source.read(0, _FIXED.size))
    _check_count(source, "number of tensors", 8, n_tensors, MAX_TENSORS, _SMALLEST_TENSOR)
    _check_count(source, "number of metadata entries", 16, n_entries, MAX_ENTRIES, _SMALLEST_ENTRY)
    metadata, offset = _parse_metadata(source, n_entries, Budget(skim=skim))
    alignment = _alignment(source, metadata)
    tensors = _parse_tensors(source, offset, n_tensors, alignment, part)
    return Header(source, version, alignment, metadata, tensors, _find_overlaps(tensors))


def _check_count(source: Source, field: str, offset: int, count: int, limit: int, smallest: int) -> None:
    if count > min(limit, (source.size - _FIXED.size) // smallest):
        source.fail(field, offset, f"{count} is more than the file or the limit of {limit} allows")


def _parse_metadata(source: Source, count: int, budget: Budget) -> tuple[Metadata, int]:
    values: dict[str, object] = {}
    offsets: dict[str, int] = {}
    piece, first = b"", 0
    offset = _FIXED.size
    for index in range(count):
        at = offset - first
        if not 0 <= at < len(piece):
            piece, first, at = source.read(offset, PIECE), offset, 0
        usual = usual_entry(piece, at)
        if usual is None:
            key, behind = source.name(f"metadata key {index}", offset, MAX_KEY_BYTES)
        else:
            key, value, behind, end = usual
            behind += first
        if key in values:
            source.fail(f"metadata key {key!r}", offset, "occurs twice")
        offsets[key] = behind
        if usual is None:
            values[key], offset = parse_value(source, key, behind, budget)
        else:
            values[key], offset = value, end + first
    return Metadata(source, values, offsets), offset


def _alignment(source: Source, metadata: Metadata) -> int:
    alignment = metadata.integer("general.alignment", DEFAULT_ALIGNMENT)
    if alignment < 1 or alignment & (alignment - 1):
        at = metadata.offset("general.alignment")
        source.fail("general.alignment", at, f"{alignment} is not a power of two")
    return alignment


def _parse_tensors(
    source: Source, offset: int, count: int, alignment: int, part: int
) -> dict[str, TensorInfo]:
    described: dict[str, tuple[int, tuple[int, ...], int, int]] = {}
    piece, first = b"", offset
    for index in range(count):
        if offset - first + MOST_OF_TENSOR > len(piece):
            piece, first = source.read(offset, PIECE), offset
        usual = usual_tensor(piece, offset - first)
        if usual is None or usual[2] not in _KNOWN:
            name, behind = source.name(f"name of tensor {index}", offset, MAX_TENSOR_NAME_BYTES)
            shape, number, start, end = _parse_tensor(source, name, behind)
        else:
            name, shape, number, start, end = usual
            end += first
        if name in described:
            source.fail(f"tensor {name!r}", offset, "occurs twice")
        offset = end
        if start % alignment:
            source.fail(f"offset of tensor {name!r}", offset - 8, f"{start} is not a multiple of {alignment}")
        described[name] = (offset - 8, shape, number, start)
    data_start = -(-offset // alignment) * alignment
    return {
        name: _place(source, name, at, shape, number, data_start + start, part)
        for name, (at, shape, number, start) in described.items()
    }


def _place(
    source: Source, name: str, at: int, shape: tuple[int, ...], number: int, offset: int, part: int
) -> TensorInfo:
    """The tensor at `offset`, after checking that its bytes lie in the file; `at`: its offset field."""
    kind, elements, block_bytes = _KNOWN[number]
    row = shape[-1] if shape else 1
    if row % elements:
        source.fail(
            f"tensor {name!r}",
            at,
            f"rows of {row} elements do not divide into {kind.name} blocks of {elements}",
        )
    nbytes = prod(shape) // elements * block_bytes
    if nbytes > source.size - offset:
        source.fail(
            f"offset of tensor {name!r}",
            at,
            f"its {nbytes} bytes from byte {offset} on leave the file of {source.size} bytes; "
            "the file is truncated or damaged, download it again",
        )
    return TensorInfo(name, shape, kind, offset, nbytes, part)


def _parse_tensor(source: Source, name: str, offset: int) -> tuple[tuple[int, ...], int, int, int]:
    """Shape, type's number, offset in the data part, and the offset behind the description."""
    field = f"tensor {name!r}"
    n_dims = source.u32(field, offset)
    if n_dims > MAX_DIMENSIONS:
        source.fail(field, offset, f"has {n_dims} dimensions; at most {MAX_DIMENSIONS} are allowed")
    source.need(field, offset + 4, 8 * n_dims + 12)
    *dims, type_number, start = struct.unpack(f"<{n_dims}QIQ", source.read(offset + 4, 8 * n_dims + 12))
    if 0 in dims:
        source.fail(field, offset + 4, f"has a dimension of 0 in {dims}")
    if type_number not in _KNOWN:
        what = _OTHER_TYPES.get(type_number, f"number {type_number}, which is unknown")
        at = offset + 4 + 8 * n_dims
        raise UnsupportedModelError(
            f"{source.path}: {field} at byte {at}: has type {what}; supported are "
            f"{', '.join(member.name for member in GGMLType)}."
        )
    return tuple(reversed(dims)), type_number, start, offset + 4 + 8 * n_dims + 12


def _find_overlaps(tensors: dict[str, TensorInfo]) -> dict[str, str]:
    overlaps: dict[str, str] = {}
    end = 0
    for *_, offset, nbytes, _ in tensors.values():
        if offset < end:
            break
        end = offset + nbytes
    else:
        return overlaps
    ordered = sorted(tensors.values(), key=lambda info: info.offset)
    furthest = ordered[0] if ordered else None
    for info in ordered[1:]:
        assert furthest is not None
        if furthest.offset + furthest.nbytes > info.offset:
            overlaps[info.name] = furthest.name
            overlaps.setdefault(furthest.name, info.name)
        if info.offset + info.nbytes > furthest.offset + furthest.nbytes:
            furthest = info
    return overlaps
