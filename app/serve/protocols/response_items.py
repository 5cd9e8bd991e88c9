"""What OpenAI's responses are asked with: items of several kinds, in the engine's words."""

from collections.abc import Mapping
from typing import Any

from app.serve.http.fields import Fields
from app.serve.protocols.shared import make_tool, text_of_parts
from app.tools.calls import arguments_object
from engine import Message, ToolCall

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXTS = ("input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text")


def read_input(fields: Fields) -> tuple[Message, ...]:
    """The conversation: instructions, then what stands in `input`."""
    instructions = fields.text("instructions")
    messages = [Message("system", instructions)] if instructions else []
    if isinstance(fields.get("input"), str):
        return (*messages, Message("user", fields.need_text("input")))
    if not fields.many("input"):
        raise fields.refuse("input", "must be text or a list of items")
    turns = _Turns(messages)
    for item in fields.objects("input"):
        turns.add(item)
    return tuple(turns.whole())


class _Turns:
    """Puts together the items that are one answer: its thoughts, its text and its calls."""

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages
        self._thought = ""
        self._text = ""
        self._calls: list[ToolCall] = []
        self._names: dict[str, str] = {}

    def add(self, item: Fields) -> None:
        """Take the next item."""
        kind = item.text("type") or "message"
        if kind == "message":
            self._message(item)
        elif kind == "reasoning":
            self._end_answer()
            self._thought = text_of_parts(item, "content", _TEXTS)
        elif kind == "function_call":
            name, call_id = item.need_text("name"), item.need_text("call_id")
            self._names[call_id] = name
            self._calls.append(ToolCall(call_id, name, arguments_object(item.text("arguments") or "")))
        elif kind == "function_call_output":
            self._end_answer()
            call_id = item.need_text("call_id")
            output = text_of_parts(item, "output", _TEXTS)
            name = self._names.get(call_id, "")
            self._messages.append(Message("tool", output, tool_call_id=call_id, tool_name=name))
        else:
            raise item.refuse("type", f"{kind[:40]!r} is not served")

    def whole(self) -> list[Message]:
        """All messages."""
        self._end_answer()
        return self._messages

    def _message(self, item: Fields) -> None:
        role = item.need_text("role")
        if role not in _ROLES:
            raise item.refuse("role", f"{role[:40]!r} is not one of {', '.join(_ROLES)}")
        text = text_of_parts(item, "content", _TEXTS)
        if role == "assistant":
            if self._text or self._calls:
                self._end_answer()
            self._text = text
        else:
            self._end_answer()
            self._messages.append(Message(_ROLES[role], text))

    def _end_answer(self) -> None:
        if self._text or self._calls or self._thought:
            answer = Message("assistant", self._text, self._thought or None, tuple(self._calls))
            self._messages.append(answer)
        self._thought, self._text, self._calls = "", "", []


def read_response_tools(fields: Fields) -> tuple[Mapping[str, Any], ...]:
    """Tools as responses name them, in the form of chats."""
    tools = []
    for tool in fields.objects("tools"):
        if tool.text("type") != "function":
            raise tool.refuse("type", "only tools of the type function are served")
        tools.append(make_tool(tool, tool.inner("parameters"), strict=tool.flag("strict")))
    return tuple(tools)
