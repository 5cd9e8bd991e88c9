"""The `[tools.NAME]` sections: programs whose functions models may call.

A server of which it is not clear what is to be started, or with what, is left out; any other value that is
wrong gets its default.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

from app.settings.options import checked, kind_of, option, parse_size, shown

ALL_TOOLS = "*"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
_MOST_TEXT = "32 KiB"
_STARTING = ("command", "args", "env")
"""What says which program is started: none of it is guessed."""


@dataclass(frozen=True, slots=True)
class ToolServer:
    """One program that speaks the Model Context Protocol (MCP) over stdin and stdout."""

    command: str = option("", "program to start, by its name or path")
    args: tuple[str, ...] = option((), "what it is started with")
    env: tuple[tuple[str, str], ...] = option(
        (),
        'environment variables for it, such as { TOKEN = "…" }; beside them it gets PATH, HOME, USER and the '
        "language, nothing else",
        written="{}",
    )
    on: bool = option(False, "switched on in new chats; /tools switches it in a chat")
    allow: tuple[str, ...] = option(
        (), 'tools that run without being asked about; ["*"] for all of this server'
    )
    hidden: bool = option(False, "let its tools run while their chat is not in view")
    timeout: float = option(60.0, "most seconds of its start, and of each call", low=0.1, high=86_400.0)
    most_text: str = option(_MOST_TEXT, "most text of a result that is read, as a size", size=True)

    @property
    def most_bytes(self) -> int:
        """The most bytes of a result; auto is the default's."""
        return parse_size(_MOST_TEXT if self.most_text == "auto" else self.most_text)

    def allows(self, tool: str) -> bool:
        """Whether a tool runs without being asked about."""
        return ALL_TOOLS in self.allow or tool in self.allow


def read_servers(
    content: Mapping[str, Any], warn: Callable[[str], None], unknown: Callable[[str, Any, str], str]
) -> Mapping[str, ToolServer]:
    """Return the servers by name; `warn` hears what is wrong, `unknown(key, known, section)` words a key."""
    found: dict[str, ToolServer] = {}
    for name, values in content.items():
        where = f"tools.{name}"
        if not isinstance(values, dict):
            warn(f"{where} must be a section [{where}], not {kind_of(values)}; ignored")
        elif not _NAME.fullmatch(name):
            warn(f"{where}: a server's name is 1 to 32 letters, digits, - or _; it is left out")
        elif (server := _read_server(where, values, warn, unknown)) is not None:
            found[name] = server
    return MappingProxyType(found)


def _read_server(
    where: str,
    content: Mapping[str, Any],
    warn: Callable[[str], None],
    unknown: Callable[[str, Any, str], str],
) -> ToolServer | None:
    options = {field.name: field for field in fields(ToolServer)}
    values: dict[str, Any] = {}
    startable = True
    for key, value in content.items():
        if key not in options:
            warn(unknown(key, options, f"{where}."))
            continue
        default = options[key].default
        try:
            values[key] = _env(value) if key == "env" else checked(value, default, options[key].metadata)
        except ValueError as error:
            startable = startable and key not in _STARTING
            instead = (
                "the server is left out" if key in _STARTING else f"the default {shown(default)} is used"
            )
            warn(f"{where}.{key} must be {error}; {instead}")
    if startable and not values.get("command", "").strip():
        startable = False
        warn(f"{where}.command must name the program to start; the server is left out")
    return ToolServer(**values) if startable else None


def _env(value: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError('a table of texts such as { TOKEN = "…" }')
    return tuple(value.items())
