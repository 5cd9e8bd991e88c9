"""Reading what nearly every header is made of in few steps: entries of one value, descriptions of tensors.

Both are read from a piece of the file. What is not as usual about them is left to who reads closely,
and words errors.
"""

import struct

from engine.gguf.metadata import SCALARS, ValueType

PIECE = 1 << 14
"""Bytes of a file that are read at a time for this."""
MAX_DIMENSIONS = 4
_NAME = 64
_TEXT = 1 << 12
MOST_OF_TENSOR = 8 + _NAME + 4 + 8 * MAX_DIMENSIONS + 4 + 8
_LENGTH = struct.Struct("<Q").unpack_from
_NUMBER = struct.Struct("<I").unpack_from
_DESCRIPTIONS = {
    count: (layout.unpack_from, layout.size)
    for count in range(MAX_DIMENSIONS + 1)
    for layout in (struct.Struct(f"<I{count}QIQ"),)
}
"""By number of dimensions: that number and what follows it."""
_VALUES = {
    int(kind): (layout.unpack_from, layout.size)
    for kind, layout in SCALARS.items()
    if kind is not ValueType.BOOL
}

Entry = tuple[str, object, int, int]
"""Key, value, and where in the piece its type begins and the value ends."""
Tensor = tuple[str, tuple[int, ...], int, int, int]
"""Name, shape, number of its type, offset in the data, and where in the piece its description ends."""


def usual_entry(piece: bytes, at: int) -> Entry | None:
    """The metadata entry at `at` of a piece, if it has a number or a short text."""
    try:
        (length,) = _LENGTH(piece, at)
        if not 0 < length <= _NAME:
            return None
        behind = at + 8 + length
        kind = _NUMBER(piece, behind)[0]
        key = piece[at + 8 : behind].decode()
        if kind == ValueType.STRING:
            (length,) = _LENGTH(piece, behind + 4)
            end = behind + 12 + length
            if length > _TEXT or end > len(piece):
                return None
            return key, piece[behind + 12 : end].decode("utf-8", "replace"), behind, end
        unpack, size = _VALUES[kind]
        return key, unpack(piece, behind + 4)[0], behind, behind + 4 + size
    except (struct.error, UnicodeDecodeError, KeyError):
        return None


def usual_tensor(piece: bytes, at: int) -> Tensor | None:
    """The description of a tensor at `at` of a piece; its type may be unknown."""
    try:
        (length,) = _LENGTH(piece, at)
        if not 0 < length <= _NAME:
            return None
        behind = at + 8 + length
        name = piece[at + 8 : behind].decode()
        dimensions = piece[behind]
        unpack, size = _DESCRIPTIONS[dimensions]
        numbers = unpack(piece, behind)
    except (struct.error, UnicodeDecodeError, KeyError, IndexError):
        return None
    shape = numbers[-3:0:-1]
    if numbers[0] != dimensions or 0 in shape:
        return None
    return name, shape, numbers[-2], numbers[-1], behind + size
