"""The metadata of a GGUF file: scalars at once, arrays and long texts when first asked for."""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NoReturn, overload

import numpy as np

from engine.api.errors import ModelFileError
from engine.gguf.source import Source
from engine.gguf.strings import decode_strings, guess_end, string_fields

MAX_KEY_BYTES = 65_535
MAX_TEXT_BYTES = 1 << 26
MAX_ARRAY_STRINGS = 1 << 22
MAX_NESTED_ARRAYS = 1 << 16
MAX_NESTING = 4
_EAGER_TEXT_BYTES = 1 << 16
_SKIM_FROM = 1000


class ValueType(IntEnum):
    """Value types as numbered in GGUF metadata."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


_TYPES = {int(member): member for member in ValueType}
SCALARS = {
    ValueType.UINT8: struct.Struct("<B"),
    ValueType.INT8: struct.Struct("<b"),
    ValueType.UINT16: struct.Struct("<H"),
    ValueType.INT16: struct.Struct("<h"),
    ValueType.UINT32: struct.Struct("<I"),
    ValueType.INT32: struct.Struct("<i"),
    ValueType.FLOAT32: struct.Struct("<f"),
    ValueType.BOOL: struct.Struct("<B"),
    ValueType.UINT64: struct.Struct("<Q"),
    ValueType.INT64: struct.Struct("<q"),
    ValueType.FLOAT64: struct.Struct("<d"),
}


@dataclass(slots=True)
class Budget:
    """What the arrays of one header may still contain, so that parsing time stays bounded.

    With `skim` the ends of string arrays are guessed (`strings.guess_end`).
    """

    strings: int = MAX_ARRAY_STRINGS
    arrays: int = MAX_NESTED_ARRAYS
    skim: bool = False


@dataclass(slots=True)
class LazyText:
    """A long string value, decoded when first asked for."""

    offset: int
    nbytes: int

    def decode(self, source: Source) -> object:
        """The text; bytes that are not UTF-8 become U+FFFD."""
        return source.read(self.offset, self.nbytes).decode("utf-8", "replace")


@dataclass(slots=True)
class LazyArray:
    """An array value whose place in the file has been checked, decoded when first asked for.

    `end` is the offset behind it, `fields` what `string_fields` found, unless its end was guessed.
    """

    type: ValueType
    count: int
    offset: int
    end: int
    fields: np.ndarray | None = None
    children: list["LazyArray"] = field(default_factory=list)

    def decode(self, source: Source) -> object:
        """Strings as list[str], numbers and booleans as a 1-D numpy array, nested arrays as a list."""
        if self.type is ValueType.ARRAY:
            return [child.decode(source) for child in self.children]
        if self.type is ValueType.STRING:
            fields = self.fields
            if fields is None:
                fields = string_fields(source, "array of strings", self.offset, self.count)
            return decode_strings(source, fields)
        dtype = np.dtype(SCALARS[self.type].format)
        raw = np.frombuffer(source.read(self.offset, self.count * dtype.itemsize), dtype=dtype)
        array = raw != 0 if self.type is ValueType.BOOL else raw
        array.flags.writeable = False
        return array


class Metadata(Mapping[str, object]):
    """Key to value. Arrays are decoded on first access and kept; `len` and `in` decode nothing."""

    def __init__(self, source: Source, values: dict[str, object], offsets: dict[str, int]) -> None:
        self._source: Source | None = source
        self._path = source.path
        self._values = values
        self._offsets = offsets

    def __getitem__(self, key: str) -> object:
        value = self._values[key]
        if isinstance(value, LazyArray | LazyText):
            if self._source is None:
                raise ModelFileError(f"{self._path}: {key} was asked for after the file had been closed.")
            value = value.decode(self._source)
            self._values[key] = value
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def close(self) -> None:
        """Let go of the file; what was decoded stays readable."""
        self._source = None

    def offset(self, key: str) -> int:
        """Byte offset of the value at `key`, for error messages; 0 when the key is absent."""
        return self._offsets.get(key, 0)

    @overload
    def string(self, key: str, default: str) -> str: ...
    @overload
    def string(self, key: str, default: None = None) -> str | None: ...
    def string(self, key: str, default: str | None = None) -> str | None:
        """The text at `key`, `default` when it is absent; ModelFileError for another type."""
        value = self.get(key)
        if value is None:
            return default
        return value if isinstance(value, str) else self._wrong(key, "a string", value)

    @overload
    def integer(self, key: str, default: int) -> int: ...
    @overload
    def integer(self, key: str, default: None = None) -> int | None: ...
    def integer(self, key: str, default: int | None = None) -> int | None:
        """The integer at `key`, `default` when it is absent; ModelFileError for another type."""
        value = self.get(key)
        if value is None:
            return default
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        return self._wrong(key, "an integer", value)

    @overload
    def number(self, key: str, default: float) -> float: ...
    @overload
    def number(self, key: str, default: None = None) -> float | None: ...
    def number(self, key: str, default: float | None = None) -> float | None:
        """The integer or float at `key` as a float, `default` when absent; else ModelFileError."""
        value = self.get(key)
        if value is None:
            return default
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        return self._wrong(key, "a number", value)

    @overload
    def boolean(self, key: str, default: bool) -> bool: ...
    @overload
    def boolean(self, key: str, default: None = None) -> bool | None: ...
    def boolean(self, key: str, default: bool | None = None) -> bool | None:
        """The boolean at `key`, `default` when it is absent; ModelFileError for another type."""
        value = self.get(key)
        if value is None:
            return default
        return value if isinstance(value, bool) else self._wrong(key, "a boolean", value)

    def strings(self, key: str) -> list[str]:
        """The array of strings at `key`, empty when it is absent; ModelFileError for another type."""
        value = self.get(key)
        if value is None:
            return []
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return value
        return self._wrong(key, "an array of strings", value)

    def numbers(self, key: str) -> np.ndarray:
        """The array of numbers at `key` (1-D, read-only), empty when absent; else ModelFileError."""
        value = self.get(key)
        if value is None:
            return np.empty(0, dtype=np.int64)
        if isinstance(value, np.ndarray) and value.dtype != np.bool_:
            return value
        return self._wrong(key, "an array of numbers", value)

    def _wrong(self, key: str, wanted: str, value: object) -> NoReturn:
        kind = "an array" if isinstance(value, list | np.ndarray) else type(value).__name__
        raise ModelFileError(
            f"{self._path}: {key} at byte {self.offset(key)}: must be {wanted} but the file holds {kind}."
        )


def parse_value(source: Source, key: str, offset: int, budget: Budget) -> tuple[object, int]:
    """The value whose type field lies at `offset`, and the offset behind it."""
    value_type = _value_type(source, key, offset)
    offset += 4
    if value_type is ValueType.ARRAY:
        array = _parse_array(source, key, offset, budget, depth=1)
        return array, array.end
    if value_type is ValueType.STRING:
        return _parse_text(source, key, offset)
    layout = SCALARS[value_type]
    source.need(key, offset, layout.size)
    value: object = layout.unpack(source.read(offset, layout.size))[0]
    if value_type is ValueType.BOOL:
        if value not in (0, 1):
            source.fail(key, offset, f"a boolean is 0 or 1, not {value}")
        value = bool(value)
    return value, offset + layout.size


def _value_type(source: Source, key: str, offset: int) -> ValueType:
    number = source.u32(key, offset)
    value_type = _TYPES.get(number)
    if value_type is None:
        source.fail(key, offset, f"value type {number} is unknown; 0 to {max(_TYPES)} are defined")
    return value_type


def _parse_text(source: Source, key: str, offset: int) -> tuple[object, int]:
    length = source.u64(key, offset)
    if length > MAX_TEXT_BYTES:
        source.fail(key, offset, f"a text of {length} bytes is longer than the limit of {MAX_TEXT_BYTES}")
    source.need(key, offset + 8, length)
    text = LazyText(offset + 8, length)
    if length > _EAGER_TEXT_BYTES:
        return text, offset + 8 + length
    return text.decode(source), offset + 8 + length


def _parse_array(source: Source, key: str, offset: int, budget: Budget, depth: int) -> LazyArray:
    item_type = _value_type(source, key, offset)
    count = source.u64(key, offset + 4)
    offset += 12
    smallest = 12 if item_type is ValueType.ARRAY else 8
    smallest = SCALARS[item_type].size if item_type in SCALARS else smallest
    if count > (source.size - offset) // smallest:
        source.fail(key, offset - 8, f"an array of {count} elements cannot fit into the rest of the file")
    array = LazyArray(item_type, count, offset, offset + count * smallest)
    if item_type is ValueType.STRING:
        budget.strings -= count
        if budget.strings < 0:
            source.fail(key, offset - 8, f"the file has more than {MAX_ARRAY_STRINGS} strings in arrays")
        _find_strings(source, key, array, budget.skim)
    elif item_type is ValueType.ARRAY:
        array.children = _parse_nested(source, key, array, budget, depth)
        array.end = array.children[-1].end if array.children else offset
    return array


def _find_strings(source: Source, key: str, array: LazyArray, skim: bool) -> None:
    guess = guess_end(source, array.offset, array.count) if skim and array.count >= _SKIM_FROM else None
    if guess is not None:
        array.end = guess
        return
    array.fields = string_fields(source, key, array.offset, array.count)
    array.end = int(array.fields[-1])


def _parse_nested(source: Source, key: str, array: LazyArray, budget: Budget, depth: int) -> list[LazyArray]:
    budget.arrays -= array.count
    if depth >= MAX_NESTING:
        source.fail(key, array.offset, f"arrays are nested deeper than {MAX_NESTING}")
    if budget.arrays < 0:
        source.fail(key, array.offset, f"the file has more than {MAX_NESTED_ARRAYS} nested arrays")
    children = []
    offset = array.offset
    for _ in range(array.count):
        child = _parse_array(source, key, offset, budget, depth + 1)
        children.append(child)
        offset = child.end
    return children
