"""Changing one value in a TOML text without touching the rest: comments, order and layout stay."""

import tomllib
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError


class TomlEditError(Exception):
    """The text is laid out in a way that cannot be edited in place."""


def toml_value(value: Any) -> str:
    """Write a string, bool, int, float or a sequence of these as TOML."""
    return tomlkit.item(value).as_string()


def toml_entry(key: str, value: Any) -> str:
    """Write `key = value`."""
    return f"{tomlkit.key(key).as_string()} = {toml_value(value)}"


def edit_toml(text: str, section: str, key: str, value: Any) -> str:
    """Return the text with `[section] key = value`, or without that key where the value is None.

    Raises `TomlEditError` when the result would not read back as asked.
    """
    try:
        document = tomlkit.parse(text)
        if section not in document:
            document[section] = tomlkit.table()
        table: Any = document[section]
        if value is not None:
            table[key] = value
        elif key in table:
            del table[key]
        edited = tomlkit.dumps(document)
    except (TOMLKitError, TypeError, ValueError) as error:
        raise TomlEditError(_refused(section, key)) from error
    _verify(text, edited, section, key, value)
    return edited


def _verify(before: str, after: str, section: str, key: str, value: Any) -> None:
    expected = tomllib.loads(before)
    if value is None:
        expected.setdefault(section, {}).pop(key, None)
    else:
        expected.setdefault(section, {})[key] = list(value) if isinstance(value, tuple) else value
    try:
        matches = tomllib.loads(after) == expected
    except tomllib.TOMLDecodeError:
        matches = False
    if not matches:
        raise TomlEditError(_refused(section, key))


def _refused(section: str, key: str) -> str:
    return f"{section}.{key} is written in a form that cannot be changed automatically"
