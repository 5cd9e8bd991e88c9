"""The tools of some servers under the names that a model calls them by."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

_FIT = re.compile(r"[A-Za-z0-9_.-]{1,128}")
LONGEST_DESCRIPTION = 4_000
LONGEST_SCHEMA = 64 << 10


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a server offers."""

    server: str
    name: str
    description: str = ""
    schema: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Offered:
    """Tools by the names that a model is told."""

    tools: Mapping[str, Tool] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.tools)

    @cached_property
    def schemas(self) -> Mapping[str, Mapping[str, Any]]:
        """Schemas of the tools' arguments."""
        return {name: tool.schema for name, tool in self.tools.items()}

    @cached_property
    def definitions(self) -> Sequence[Mapping[str, Any]]:
        """The tools in OpenAI's form, which templates know."""
        return [
            {
                "type": "function",
                "function": {"name": name, "description": tool.description, "parameters": dict(tool.schema)},
            }
            for name, tool in self.tools.items()
        ]


NO_TOOLS = Offered()


def offered(tools: Iterable[Tool]) -> Offered:
    """Return tools under their own names; those that several servers have are led by their server's."""
    all_tools = list(tools)
    names = [tool.name for tool in all_tools]
    found: dict[str, Tool] = {}
    for tool in all_tools:
        name = tool.name if names.count(tool.name) == 1 else f"{tool.server}-{tool.name}"
        found.setdefault(name, tool)
    return Offered(found)


def fits(name: str) -> bool:
    """Whether a tool's name can stand in a call."""
    return _FIT.fullmatch(name) is not None
