"""Changing one value in a TOML text without touching the rest: comments and layout stay."""

import re
import tomllib
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


class TomlEditError(Exception):
    """The text is laid out in a way that cannot be edited in place."""


def toml_value(value: Any) -> str:
    """Write a string, bool, int, float or a sequence of these as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return '"' + "".join(_escaped(char) for char in value) + '"'
    return "[" + ", ".join(toml_value(item) for item in value) + "]"


def toml_entry(key: str, value: Any) -> str:
    """Write `key = value`."""
    return f"{key if _BARE_KEY.fullmatch(key) else toml_value(key)} = {toml_value(value)}"


def edit_toml(text: str, section: str, key: str, value: Any) -> str:
    """Return the text with `[section] key = value`.

    Raises `TomlEditError` when the result would not read back as asked.
    """
    lines = text.splitlines()
    begin, end = _section_range(lines, section)
    entry = toml_entry(key, value)
    if begin is None:
        lines += ([""] if lines and lines[-1].strip() else []) + [f"[{section}]", entry]
    else:
        first, last = _entry_range(lines, begin, end, key)
        lines[first:last] = [entry]
    edited = "\n".join(lines) + "\n"
    _verify(text, edited, section, key, value)
    return edited


def _section_range(lines: list[str], section: str) -> tuple[int | None, int]:
    """The lines between a section's header and the next header."""
    begin: int | None = None
    for index, line in enumerate(lines):
        header = re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line)
        if header is None or _inside_value(lines, index):
            continue
        if begin is not None:
            return begin, index
        if header[1].strip("\"'") == section:
            begin = index + 1
    return begin, len(lines)


def _inside_value(lines: list[str], index: int) -> bool:
    """Whether a line that looks like a header belongs to a value begun above it."""
    try:
        tomllib.loads("\n".join(lines[:index]))
    except tomllib.TOMLDecodeError:
        return True
    return False


def _entry_range(lines: list[str], begin: int, end: int, key: str) -> tuple[int, int]:
    """The lines that a key's entry takes, or an empty range where a new one belongs."""
    pattern = re.compile(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=")
    for first in range(begin, end):
        if not pattern.match(lines[first]):
            continue
        for last in range(first + 1, end + 1):
            try:
                tomllib.loads("\n".join(lines[first:last]))
            except tomllib.TOMLDecodeError:
                continue
            return first, last
        raise TomlEditError(f"the value of {key} cannot be found")
    while end > begin and not lines[end - 1].strip():
        end -= 1
    return end, end


def _verify(before: str, after: str, section: str, key: str, value: Any) -> None:
    expected = tomllib.loads(before)
    expected.setdefault(section, {})[key] = list(value) if isinstance(value, tuple) else value
    try:
        matches = tomllib.loads(after) == expected
    except tomllib.TOMLDecodeError:
        matches = False
    if not matches:
        raise TomlEditError(f"{section}.{key} is written in a form that cannot be changed automatically")


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    code = ord(char)
    if code < 0x20 or code == 0x7F:
        return f"\\u{code:04x}"
    return char
