"""Calls of tools out of the deltas of a stream, where they come in parts beside the text."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.tools.calls import arguments_object, new_id
from engine import ToolCall

MOST_CALLS = 64
"""Of what a server asks for more in one answer, the rest is left out."""


@dataclass(slots=True)
class _Parts:
    """What has come of one call."""

    id: str = ""
    name: str = ""
    arguments: str = ""


class CallParts:
    """Puts calls together. Servers differ in what they number: some number nothing, some all alike."""

    def __init__(self) -> None:
        self._parts: list[_Parts] = []
        self._by_index: dict[int, _Parts] = {}

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls that have a name, in order; arguments that are no JSON object stay a text."""
        named = [one for one in self._parts if one.name]
        return tuple(ToolCall(one.id or new_id(), one.name, arguments_object(one.arguments)) for one in named)

    def take(self, deltas: Any) -> bool:
        """Take the `tool_calls` of a delta; tell whether there was something in it."""
        found = [delta for delta in deltas if isinstance(delta, Mapping)] if isinstance(deltas, list) else []
        for delta in found:
            self._take(delta)
        return bool(found)

    def _take(self, delta: Mapping[str, Any]) -> None:
        function = delta.get("function")
        function = function if isinstance(function, Mapping) else {}
        number, name = _text(delta.get("id")), _text(function.get("name"))
        parts = self._parts_of(delta.get("index"), number, name)
        if parts is None:
            return
        parts.id = parts.id or number
        parts.name += name
        arguments = function.get("arguments")
        whole = isinstance(arguments, Mapping)
        parts.arguments += json.dumps(arguments) if whole else _text(arguments)

    def _parts_of(self, index: Any, number: str, name: str) -> _Parts | None:
        """The call that a delta belongs to, a new one where it begins one; None where there are too many."""
        last = self._parts[-1] if self._parts else None
        known = self._by_index.get(index) if type(index) is int else last
        begins = known is None or (bool(name) and type(index) is not int)
        begins = begins or bool(name and number and known and known.id and number != known.id)
        if not begins:
            return known
        if len(self._parts) >= MOST_CALLS:
            return None
        parts = _Parts()
        self._parts.append(parts)
        if type(index) is int:
            self._by_index[index] = parts
        return parts


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
