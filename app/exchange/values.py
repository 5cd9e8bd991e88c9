"""Values of a JSON file that may hold anything: what is not as it should be is refused by its place."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from app.exchange.kept import ChatFileError

MOST_MESSAGES = 100_000
LONGEST_TEXT = 32 << 20
"""Characters of one text: SQLite takes a row of at most a billion bytes."""
_LONGEST_NAME = 200
_LARGEST_NUMBER = 2**53
_LATEST = 253_402_300_799.0
"""The last second of the year 9999: what comes later is no time in seconds."""


@dataclass(frozen=True, slots=True)
class Fields:
    """An object of the file. A field that is not there or null is empty; one of a wrong type is refused."""

    values: dict[str, Any]
    where: str

    @property
    def keys(self) -> list[str]:
        """The names of the fields."""
        return list(self.values)

    def get(self, name: str) -> Any:
        """Return a field as it is."""
        return self.values.get(name)

    def refuse(self, name: str, why: str) -> NoReturn:
        """Say that a field is wrong."""
        raise ChatFileError(f"{self.where}: {name} {why}")

    def name(self, name: str) -> str:
        """Return an id, which must be there."""
        value = self.get(name)
        if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_NAME:
            self.refuse(name, "is no id")
        return clean_text(value)

    def text_or_none(self, name: str) -> str | None:
        """Return a text."""
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            self.refuse(name, "is no text")
        if value is not None and len(value) > LONGEST_TEXT:
            self.refuse(name, f"is longer than {LONGEST_TEXT:,} characters")
        return None if value is None else clean_text(value)

    def text(self, name: str) -> str:
        """Return a text, an empty one where there is none."""
        return self.text_or_none(name) or ""

    def texts(self, name: str) -> list[str]:
        """Return a list of texts."""
        found = self._list(name)
        if not all(isinstance(value, str) for value in found):
            self.refuse(name, "is no list of texts")
        return [clean_text(value) for value in found]

    def flag(self, name: str) -> bool:
        """Return a truth value."""
        value = self.get(name)
        if value not in (None, True, False):
            self.refuse(name, "is neither true nor false")
        return bool(value)

    def number(self, name: str) -> float:
        """Return a finite number, 0 where there is none."""
        value = self.get(name)
        if value is None:
            return 0.0
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(name, "is no number")
        if not -_LARGEST_NUMBER <= value <= _LARGEST_NUMBER:
            self.refuse(name, "is out of range")
        return float(value)

    def time(self, name: str) -> float:
        """Return seconds since 1970; milli-, micro- and nanoseconds are told by their size."""
        value = abs(self.number_or_large(name))
        while value > _LATEST:
            value /= 1000
        return value

    def number_or_large(self, name: str) -> float:
        """Return a finite number of any size."""
        value = self.get(name)
        if value is None:
            return 0.0
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(name, "is no number")
        try:
            found = float(value)
        except OverflowError:
            found = math.inf
        if not math.isfinite(found):
            self.refuse(name, "is out of range")
        return found

    def whole(self, name: str, least: int) -> int | None:
        """Return a whole number that is at least so much."""
        value = self.get(name)
        if value is None:
            return None
        if type(value) is not int or not least <= value <= _LARGEST_NUMBER:
            self.refuse(name, f"is no whole number from {least} on")
        return int(value)

    def whole_numbers(self, name: str, most: int) -> list[int]:
        """Return a list of whole numbers from 0 on."""
        found = self._list(name)
        if not all(type(value) is int and 0 <= value <= most for value in found):
            self.refuse(name, f"is no list of whole numbers from 0 to {most}")
        return found

    def one_of(self, name: str, known: Iterable[str], usual: str | None = None) -> str:
        """Return one of the known words."""
        value, words = self.get(name), [str(word) for word in known]
        if value is None and usual is not None:
            return usual
        if value not in words:
            self.refuse(name, f"is none of {', '.join(words)}")
        return str(value)

    def fields(self, name: str) -> "Fields":
        """Return an object, an empty one where there is none."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            self.refuse(name, "is no object")
        return Fields(value or {}, f"{self.where}: {name}")

    def list_of_fields(self, name: str) -> list["Fields"]:
        """Return a list of objects."""
        found = self._list(name)
        if len(found) > MOST_MESSAGES:
            self.refuse(name, f"has more than {MOST_MESSAGES:,} entries")
        if not all(isinstance(value, dict) for value in found):
            self.refuse(name, "is no list of objects")
        return [Fields(value, f"{self.where}: {name}[{at}]") for at, value in enumerate(found)]

    def _list(self, name: str) -> list[Any]:
        value = self.get(name)
        if value is not None and not isinstance(value, list):
            self.refuse(name, "is no list")
        return value or []


def clean_text(text: str) -> str:
    """Return a text as it can be stored: lone surrogates become replacement characters."""
    return text.encode("utf-8", "replace").decode()
