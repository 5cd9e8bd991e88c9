"""Messages of Anthropic's protocol in the engine's words."""

import json
from collections.abc import Mapping
from typing import Any

from app.serve.http.fields import Fields
from app.serve.protocols.shared import make_tool, text_of_parts
from engine import Message, ToolCall


def read_conversation(fields: Fields) -> tuple[Message, ...]:
    """The system's words, then the messages; raises `ApiError` naming what is wrong with one."""
    system = text_of_parts(fields, "system")
    messages = [Message("system", system)] if system else []
    if not fields.many("messages"):
        raise fields.refuse("messages", "must be a list of at least one message")
    names: dict[str, str] = {}
    for message in fields.objects("messages"):
        role = message.need_text("role")
        if role == "assistant":
            messages.append(_answer(message, names))
        elif role in ("user", "system"):
            messages += _said(message, role, names)
        else:
            raise message.refuse("role", f"{role[:40]!r} is not one of user, assistant, system")
    return tuple(messages)


def _answer(message: Fields, names: dict[str, str]) -> Message:
    if isinstance(message.get("content"), str):
        return Message("assistant", message.need_text("content"))
    texts, thoughts, calls = [], [], []
    for block in message.objects("content"):
        kind = block.text("type")
        if kind == "text":
            texts.append(block.need_text("text"))
        elif kind == "thinking":
            thoughts.append(block.text("thinking") or "")
        elif kind == "tool_use":
            call_id, name, given = block.need_text("id"), block.need_text("name"), block.inner("input")
            names[call_id] = name
            calls.append(ToolCall(call_id, name, given.values if given is not None else {}))
        elif kind != "redacted_thinking":
            raise block.refuse("type", f"{kind!r} is not served")
    return Message("assistant", "\n".join(texts), "\n".join(thoughts) or None, tuple(calls))


def _said(message: Fields, role: str, names: Mapping[str, str]) -> list[Message]:
    """What a user says: results of tools each as a message of its own, in their order."""
    if isinstance(message.get("content"), str):
        return [Message(role, message.need_text("content"))]
    messages: list[Message] = []
    texts: list[str] = []
    for block in message.objects("content"):
        kind = block.text("type")
        if kind == "text":
            texts.append(block.need_text("text"))
        elif kind == "tool_result":
            if texts:
                messages.append(Message(role, "\n".join(texts)))
                texts = []
            call_id = block.need_text("tool_use_id")
            result = text_of_parts(block, "content")
            messages.append(Message("tool", result, tool_call_id=call_id, tool_name=names.get(call_id, "")))
        else:
            raise block.refuse("type", f"{kind!r} is not served, only text and results of tools are")
    return [*messages, Message(role, "\n".join(texts))] if texts or not messages else messages


def read_anthropic_tools(fields: Fields) -> tuple[Mapping[str, Any], ...]:
    """Tools as this protocol names them, in the form of OpenAI's chats."""
    tools = []
    for tool in fields.objects("tools"):
        if tool.text("type") not in (None, "custom"):
            raise tool.refuse("type", "only tools that the client runs itself are served")
        tools.append(make_tool(tool, tool.inner("input_schema"), strict=tool.flag("strict")))
    return tuple(tools)


def tool_use(call: ToolCall) -> dict[str, Any]:
    """A call as this protocol writes it."""
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": call_input(call)}


def call_input(call: ToolCall) -> dict[str, Any]:
    """A call's arguments, which are an object in this protocol whatever the model wrote."""
    if not isinstance(call.arguments, str):
        return dict(call.arguments)
    try:
        value = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return {"arguments": call.arguments}
    return value if isinstance(value, dict) else {"arguments": value}
