"""Chats in which tools were used, for models that know of none."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine import Message


def without_tools(messages: "Sequence[Message]") -> "list[Message]":
    """Return the messages in their order, results of tools told by the reader, and answers without calls."""
    return [_told(message) for message in messages]


def _told(message: "Message") -> "Message":
    if message.role == "tool":
        what = f"Result of {message.tool_name}" if message.tool_name else "Result of a tool"
        return replace(
            message, role="user", content=f"[{what}]\n{message.content}", tool_call_id="", tool_name=""
        )
    if message.tool_calls:
        names = ", ".join(call.name for call in message.tool_calls)
        content = message.content or f"[Asks for {names}]"
        return replace(message, content=content, tool_calls=())
    return message
