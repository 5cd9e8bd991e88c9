"""Calls as chats keep them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine import ToolCall

_DEEPEST = 32


@dataclass(frozen=True, slots=True)
class NotedCall:
    """A model's wish to have a tool run; `server` has the tool, where that is known."""

    id: str
    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    server: str = ""

    @classmethod
    def of(cls, call: ToolCall, server: str = "") -> "NotedCall":
        """Return a call as it was written, but for what cannot be stored or sent."""
        arguments = call.arguments
        if isinstance(arguments, str) or _is_deeper(arguments, _DEEPEST):
            arguments = _storable(arguments) if isinstance(arguments, str) else ""
        else:
            arguments = json.loads(_storable(json.dumps(dict(arguments), ensure_ascii=False)))
        return cls(_storable(call.id), _storable(call.name), arguments, server)

    @property
    def text(self) -> str:
        """The arguments for a reader."""
        if isinstance(self.arguments, str):
            return self.arguments
        return json.dumps(dict(self.arguments), ensure_ascii=False, indent=2)

    @property
    def told(self) -> ToolCall:
        """The call as templates are told of it."""
        return ToolCall(self.id, self.name, self.arguments)

    @property
    def record(self) -> dict[str, Any]:
        """The call as JSON has it."""
        arguments = self.arguments if isinstance(self.arguments, str) else dict(self.arguments)
        return {"id": self.id, "name": self.name, "arguments": arguments, "server": self.server}

    @classmethod
    def read(cls, record: Any) -> "NotedCall | None":
        """Return the call of a record; None where it is none."""
        if not isinstance(record, dict):
            return None
        texts = [record.get("id", ""), record.get("name"), record.get("server", "")]
        arguments = record.get("arguments", {})
        if not all(isinstance(text, str) for text in texts) or not isinstance(arguments, dict | str):
            return None
        number, name, server = texts
        return cls(number, name, arguments, server)


def _storable(text: str) -> str:
    """Lone surrogates are in no UTF-8; a question mark takes their place."""
    return text.encode("utf-8", "replace").decode()


def _is_deeper(value: Any, levels: int) -> bool:
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return bool(inside) and (levels == 0 or any(_is_deeper(item, levels - 1) for item in inside))
