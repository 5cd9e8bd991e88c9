"""What a setting may be: its type, its limits, and the words that say what is wrong with a value.

The settings file and the dialog both check with this.
"""

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from engine import Thinking

_SIZE_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SIZE_UNITS |= {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


def option(default: Any, help: str, **limits: Any) -> Any:
    """Declare a setting: its default, what it is for, and what it may be."""
    return field(default=default, metadata={"help": help, **limits})


def parse_size(text: str) -> int:
    """Return the bytes of a size such as "2 GiB" or "512MB"; `ValueError` when it is none."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].lower() not in _SIZE_UNITS:
        raise ValueError(f'{text!r} is not a size such as "2 GiB"')
    return int(float(match[1]) * _SIZE_UNITS[match[2].lower()])


def parse_layers(text: str) -> str | int:
    """Return auto, never or a number of layers; `ValueError` for anything else."""
    if text in ("auto", "never"):
        return text
    if not (text.isascii() and text.isdecimal()) or len(text) > 4:
        raise ValueError(f"auto, never or a number of layers, not {text!r}")
    return int(text)


def checked(value: Any, default: Any, limits: Mapping[str, Any]) -> Any:
    """Return the value in the default's type; `ValueError` completes the words "must be"."""
    if isinstance(default, tuple):
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ValueError(f'a list of strings such as ["/a", "/b"], not {kind_of(value)}')
        for item in value:
            if "choices" in limits and item not in limits["choices"]:
                raise ValueError(f"some of {', '.join(limits['choices'])}, not {item!r}")
        return tuple(value)
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if limits.get("layers"):
        value = str(value) if type(value) is int else value
        return str(parse_layers(value)) if isinstance(value, str) else parse_layers(kind_of(value))
    if type(value) is not type(default):
        raise ValueError(f"{kind_of(default)}, not {kind_of(value)}")
    if "choices" in limits and value not in limits["choices"]:
        raise ValueError(f"one of {', '.join(limits['choices'])}, not {value!r}")
    if limits.get("or_zero") and value == 0:
        return value
    if "low" in limits and not limits["low"] <= value <= limits["high"]:
        zero = "0 or " if limits.get("or_zero") else ""
        raise ValueError(f"{zero}between {limits['low']} and {limits['high']}, not {value}")
    if limits.get("thinking"):
        Thinking.parse(value)
    if limits.get("size") and value != "auto":
        try:
            parse_size(value)
        except ValueError as error:
            raise ValueError(f'auto or a size such as "2 GiB", not {value!r}') from error
    return value


def kind_of(value: Any) -> str:
    """Return what a value is, as people say it."""
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text in quotes"}
    return names.get(type(value), "a list" if isinstance(value, list) else f"a {type(value).__name__}")


def shown(value: Any) -> str:
    """Return a value as messages name it."""
    return str(value).lower() if isinstance(value, bool) else repr(value)
