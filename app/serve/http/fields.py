"""Reading a JSON object field by field: what is not of its type is refused, by its name."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from app.serve.http.errors import ApiError, refused

_LONGEST_SHOWN = 60
_DEEPEST = 100


class Fields:
    """The fields of one JSON object; one that is null is as one that is not there."""

    def __init__(self, values: Mapping[str, Any], where: str = "") -> None:
        """where: the name of the object in the request; "" for the request itself."""
        self.values, self._where = values, where

    def name(self, key: str) -> str:
        """What errors call a field."""
        return f"{self._where}.{key}" if self._where else key

    def has(self, key: str) -> bool:
        """Whether a field is there."""
        return self.values.get(key) is not None

    def refuse(self, key: str, why: str) -> ApiError:
        """What is wrong with a field."""
        return refused(self.name(key), why)

    def get(self, key: str) -> Any:
        """A field as it is."""
        return self.values.get(key)

    def text(self, key: str) -> str | None:
        """A string."""
        return self._of(key, str, "a string")

    def need_text(self, key: str) -> str:
        """A string that must be there."""
        text = self.text(key)
        if text is None:
            raise self.refuse(key, "is missing")
        return text

    def flag(self, key: str) -> bool | None:
        """True or false."""
        return self._of(key, bool, "true or false")

    def whole(self, key: str) -> int | None:
        """A whole number; 3.0 is one."""
        value = self.number(key)
        if value is None or isinstance(value, int):
            return value
        if not value.is_integer():
            raise self.refuse(key, f"{value} is not a whole number")
        return int(value)

    def number(self, key: str) -> float | None:
        """A number."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
            raise self.refuse(key, f"{shown(value)} is not a number")
        return value

    def inner(self, key: str) -> "Fields | None":
        """An object."""
        value = self._of(key, dict, "an object")
        return None if value is None else Fields(value, self.name(key))

    def many(self, key: str) -> list[Any] | None:
        """A list."""
        return self._of(key, list, "a list")

    def objects(self, key: str) -> "Iterator[Fields]":
        """The objects of a list; nothing where it is not there."""
        for index, value in enumerate(self.many(key) or ()):
            name = f"{self.name(key)}[{index}]"
            if not isinstance(value, dict):
                raise refused(name, f"{shown(value)} is not an object")
            yield Fields(value, name)

    def only(self, key: str, *allowed: object, why: str) -> None:
        """Refuse a field that is there and none of the values that change nothing."""
        value = self.values.get(key)
        if value is not None and not any(value == one and type(value) is type(one) for one in allowed):
            raise self.refuse(key, why)

    def _of(self, key: str, kind: type, what: str) -> Any:
        value = self.values.get(key)
        if value is not None and not isinstance(value, kind):
            raise self.refuse(key, f"{shown(value)} is not {what}")
        return value


def parse_object(body: bytes) -> Fields:
    """The request's body; raises `ApiError` for what is no JSON object."""
    try:
        value = json.loads(body, parse_constant=_no_number)
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        raise ApiError(f"the body is not JSON: {error}") from error
    _check_depth(value)
    if not isinstance(value, dict):
        raise ApiError(f"the body must be a JSON object, not {shown(value)}")
    return Fields(value)


def shown(value: object) -> str:
    """A value as errors show it, cut where it is long."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_DEEPEST):
        level = [
            item
            for outer in level
            if isinstance(outer, dict | list)
            for item in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> ApiError:
    return ApiError(f"the body is nested more than {_DEEPEST} levels deep")


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
