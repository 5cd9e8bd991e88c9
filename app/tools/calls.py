"""Finding the calls of tools in an answer while it is written.

Text that turns out to be no call is given back as text: nothing that a model writes is lost.
"""

import json
import re
import secrets
import string
from collections.abc import Mapping
from typing import Any

from engine import ARGUMENTS_MARK, CALL_ID_MARK, CallStyle, ToolCall, ToolFormat

_ID_LETTERS = string.ascii_letters + string.digits
_ID_LENGTH = 9
"""Mistral's templates refuse ids of any other length."""
_BARE = '{"name"'
_NAMED = re.compile(
    rf"\s*([\w.-]+)\s*(?:{re.escape(CALL_ID_MARK)}\s*\w+\s*)?{re.escape(ARGUMENTS_MARK)}(.*)", re.DOTALL
)
_FUNCTION = re.compile(r"<function=([^>\n]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)

Tools = Mapping[str, Mapping[str, Any]]
"""By the names of the tools that a request offers: the JSON schemas of their parameters."""


class CallReader:
    """Parts one answer into text and calls."""

    def __init__(self, row: ToolFormat, tools: Tools) -> None:
        self._row, self._tools = row, tools
        self._held = ""
        self._inside = False
        """Whether a call has begun."""
        self._called = False
        """Whether a call has come."""
        self._looked = 0
        """How much of what is held has no closing mark."""
        self._started = not row.bare
        """Whether it is settled that the answer itself is no call."""

    def push(self, text: str) -> list[str | ToolCall]:
        """Take the next piece of the answer; return what is decided, in order."""
        self._held += text
        out: list[str | ToolCall] = []
        while self._step(out):
            pass
        return out

    def flush(self) -> list[str | ToolCall]:
        """End the answer; return what was held back."""
        held, self._held = self._held, ""
        if not held:
            return []
        if not self._inside and self._started:
            return [held] if held.strip() or not self._called else []
        calls = self._calls(held)
        if calls and not self._inside:
            # JSON that stands for itself is a call only where it names a tool.
            calls = calls if all(call.name in self._tools for call in calls) else []
        return list(calls) or [self._row.opens * self._inside + held]

    def _step(self, out: list[str | ToolCall]) -> bool:
        if self._inside:
            return self._step_call(out)
        if not self._started:
            begin = re.sub(r"\s", "", self._held[:64])
            if begin.startswith(_BARE) or _BARE.startswith(begin):
                return False
            self._started = True
        before, found, after = self._held.partition(self._row.opens)
        if found:
            self._held, self._inside, self._looked = after, True, 0
            _say(before.rstrip(), out)
            return True
        keep = _open_end(self._held, self._row.opens)
        # White space in front of a call belongs to nothing.
        ready = self._held[: len(self._held) - keep].rstrip()
        _say(ready, out)
        self._held = self._held[len(ready) :]
        return False

    def _step_call(self, out: list[str | ToolCall]) -> bool:
        closes = self._row.closes
        if not closes:
            return False
        end = self._held.find(closes, self._looked)
        if end < 0:
            self._looked = max(0, len(self._held) - len(closes) + 1)
            return False
        calls = self._calls(self._held[:end])
        if not calls and _in_string(self._held[:end]):
            self._looked = end + len(closes)
            return True
        out += calls or [self._row.opens + self._held[:end] + closes]
        self._held, self._inside, self._called = self._held[end + len(closes) :], False, True
        return True

    def _calls(self, text: str) -> list[ToolCall]:
        """The calls that a text stands for; none where it is anything else."""
        if self._row.style is CallStyle.XML and "<function=" in text:
            return [self._xml_call(*match.groups()) for match in _FUNCTION.finditer(text)]
        if self._row.style is CallStyle.NAMED and ARGUMENTS_MARK in text:
            return _named_calls(text.split(self._row.opens))
        # Llama parts several calls by semicolons.
        return _json_calls(text)

    def _xml_call(self, name: str, body: str) -> ToolCall:
        name = name.strip()
        properties = self._tools.get(name, {}).get("properties", {})
        kinds = properties if isinstance(properties, dict) else {}
        found = ((key.strip(), value) for key, value in _PARAMETER.findall(body))
        return ToolCall(new_id(), name, {key: _typed(value, kinds.get(key)) for key, value in found})


def arguments_text(call: ToolCall) -> str:
    """The arguments as JSON, the way protocols send them."""
    if isinstance(call.arguments, str):
        return call.arguments
    return json.dumps(dict(call.arguments), ensure_ascii=False)


def arguments_object(text: str) -> Mapping[str, Any] | str:
    """Arguments that a client sends back, the way templates want them."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _say(text: str, out: list[str | ToolCall]) -> None:
    if text:
        out.append(text)


def _named_calls(parts: list[str]) -> list[ToolCall]:
    calls = []
    for part in parts:
        match = _NAMED.fullmatch(part)
        if match is None:
            return []
        calls.append(ToolCall(new_id(), match[1], arguments_object(match[2].strip())))
    return calls


def _json_calls(text: str) -> list[ToolCall]:
    decoder, values, rest = json.JSONDecoder(), [], text.strip()
    try:
        while rest:
            value, end = decoder.raw_decode(rest)
            values += value if isinstance(value, list) else [value]
            rest = rest[end:].lstrip(" \t\r\n;")
    except (ValueError, RecursionError):
        return []
    calls = [_json_call(value) for value in values]
    return [call for call in calls if call is not None] if all(calls) else []


def _json_call(value: Any) -> ToolCall | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        return ToolCall(new_id(), value["name"], arguments_object(arguments))
    return ToolCall(new_id(), value["name"], arguments) if isinstance(arguments, dict) else None


def _typed(text: str, schema: Any) -> Any:
    """A parameter's value: as it stands where a string is wanted, else as JSON where it is that."""
    if isinstance(schema, dict) and schema.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _in_string(text: str) -> bool:
    """Whether JSON ends inside a string."""
    return len(re.findall(r'"', re.sub(r"\\.", "", text))) % 2 == 1


def _open_end(text: str, mark: str) -> int:
    """Length of the longest end of `text` that is the start of a mark."""
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if mark.startswith(text[-n:])), 0)


def new_id() -> str:
    """Return an id for a call that has none."""
    return "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))
