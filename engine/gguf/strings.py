"""Finding the strings of an array quickly.

A GGUF string array is a chain: a 64-bit length, that many bytes, the next length, ... Where the
array ends is only known by walking it, and a vocabulary has hundreds of thousands of links. Almost
every length is below 256, so its field is a byte followed by seven zero bytes, which text hardly
ever contains: numpy finds all such places in a window at once, and the chain is then *verified* link
by link, again at once. What does not fit (a long string, zero bytes in a text) is walked in Python.
"""

import struct

import numpy as np

from engine.gguf.source import Source

_WINDOW = 1 << 16
_FEW = 64
_PIECE = 1 << 12
_U64 = struct.Struct("<Q")
# The upper bytes of a key's length, and how the keys begin that writers put behind string arrays.
_USUAL_KEYS = (b"tokenizer.", b"general.")
_USUAL_END = ord(".")
_SHORT = bytes(7)
"""Upper bytes of the length before them."""
_GUESS_WINDOW = 1 << 16
_GUESS_OVERLAP = 32
_SURE_SHARE = 0.75
_SAMPLE = 1 << 14
_GUESS_REACH = 1 << 26


def string_fields(source: Source, field: str, offset: int, count: int) -> np.ndarray:
    """Offsets of the length fields of `count` strings from `offset` on, and the end: int64 [count + 1].

    String i lies from `fields[i] + 8` to `fields[i + 1]`. The caller has checked that 8 * count
    bytes lie in the file. Raises ModelFileError when a string leaves the file.
    """
    fields = np.empty(count + 1, dtype=np.int64)
    done = 0
    slow = _FEW
    if count <= _FEW:
        offset = _walk(source, field, fields, 0, count, offset)
        done = count
    while done < count:
        found = _verified_run(source, offset)[: count - done]
        run = len(found)
        if run:
            fields[done : done + run] = found
            last = int(found[-1])
            offset = last + 8 + source.read(last, 1)[0]
            if offset > source.size:
                _leaves_file(source, field, done + run - 1, last)
            done += run
        # Windows searched in vain must not dominate: the Python stretch grows while they fail.
        slow = _FEW if run >= _FEW else min(slow * 2, 1 << 14)
        if run < _FEW and done < count:
            stretch = min(slow, count - done)
            offset = _walk(source, field, fields, done, stretch, offset)
            done += stretch
    fields[count] = offset
    return fields


def guess_end(source: Source, offset: int, count: int) -> int | None:
    """Where an array of `count` strings from `offset` on seems to end: before the next well-known key.

    Many times faster than walking, but a guess: a text in the array may look like a key. The caller
    must be content with that, and must walk when what follows makes no sense. None when no such key
    is near.
    """
    start = _near_end(source, offset, count)
    for place in range(start, min(source.size, start + _GUESS_REACH), _GUESS_WINDOW - _GUESS_OVERLAP):
        found = _find_key(source.read(place, _GUESS_WINDOW))
        if found is not None:
            return place + found
    return None


def _near_end(source: Source, offset: int, count: int) -> int:
    """A place before the end of `count` strings, by the lengths of some: later ones are hardly shorter."""
    while True:
        sample = source.read(offset, _SAMPLE)
        nonzero = int(np.count_nonzero(np.frombuffer(sample, dtype=np.uint8)))
        seen = (len(sample) - nonzero) // len(_SHORT)
        if count <= 4 * seen or not seen:
            return offset
        skipped = int(_SURE_SHARE * count)
        offset += skipped * len(sample) // seen
        count -= skipped


def _find_key(window: bytes) -> int | None:
    """Where the first key with its short length begins."""
    raw = np.frombuffer(window, dtype=np.uint8)
    # Few texts of a vocabulary have the byte that all these keys end in.
    for behind in (np.flatnonzero(raw == _USUAL_END) + 1).tolist():
        for key in _USUAL_KEYS:
            at = behind - len(key)
            if (
                at > len(_SHORT)
                and window.startswith(key, at)
                and window.startswith(_SHORT, at - len(_SHORT))
            ):
                return at - len(_SHORT) - 1
    return None


def decode_strings(source: Source, fields: np.ndarray) -> list[str]:
    """The strings whose length fields are `fields`; bytes that are not UTF-8 become U+FFFD."""
    base = int(fields[0])
    raw = source.read(base, int(fields[-1]) - base)
    texts: list[str] = []
    # In pieces, since making a list of all numbers holds the interpreter while others answer.
    for first in range(0, len(fields) - 1, _PIECE):
        piece = fields[first : first + _PIECE + 1] - base
        starts, ends = (piece[:-1] + 8).tolist(), piece[1:].tolist()
        texts += [raw[a:b].decode("utf-8", "replace") for a, b in zip(starts, ends, strict=True)]
    return texts


def _verified_run(source: Source, offset: int) -> np.ndarray:
    """Offsets of a run of length fields that starts at `offset` and is proved by its own lengths."""
    window = np.frombuffer(source.read(offset, _WINDOW), dtype=np.uint8)
    if len(window) < 8:
        return np.empty(0, dtype=np.int64)
    zero = window[1:] == 0
    two = zero[:-1] & zero[1:]
    four = two[:-2] & two[2:]
    seven = four[:-3] & four[3:]
    places = np.flatnonzero(seven)
    if not len(places) or places[0] != 0:
        return np.empty(0, dtype=np.int64)
    linked = places[:-1] + window[places[:-1]] + 8 == places[1:]
    run = len(linked) if linked.all() else int(linked.argmin())
    return places[: run + 1] + offset


def _walk(source: Source, field: str, fields: np.ndarray, done: int, count: int, offset: int) -> int:
    size, unpack, start, window = source.size, _U64.unpack_from, offset, b""
    for index in range(done, done + count):
        if size - offset < 8:
            _leaves_file(source, field, index, offset)
        fields[index] = offset
        if offset + 8 - start > len(window):
            start, window = offset, source.read(offset, _WINDOW)
        offset += 8 + unpack(window, offset - start)[0]
        if offset > size:
            _leaves_file(source, field, index, int(fields[index]))
    return offset


def _leaves_file(source: Source, field: str, index: int, offset: int) -> None:
    source.fail(field, offset, f"string {index} leaves the file, which has {source.size} bytes")
