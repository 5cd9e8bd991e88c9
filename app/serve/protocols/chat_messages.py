"""Messages of OpenAI's chats in the engine's words."""

from app.serve.http.fields import Fields
from app.serve.protocols.shared import text_of_parts
from app.tools.calls import arguments_object
from engine import Message, ToolCall

_ROLES = {
    "system": "system",
    # The templates that know of developers take them for the system.
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def read_messages(fields: Fields) -> tuple[Message, ...]:
    """The conversation; raises `ApiError` naming what is wrong with a message."""
    if not fields.many("messages"):
        raise fields.refuse("messages", "must be a list of at least one message")
    names: dict[str, str] = {}
    messages = []
    for message in fields.objects("messages"):
        role = message.need_text("role")
        if role not in _ROLES:
            raise message.refuse("role", f"{role[:40]!r} is not one of {', '.join(_ROLES)}")
        calls = _calls(message) if role == "assistant" else ()
        names.update((call.id, call.name) for call in calls)
        call_id = (message.text("tool_call_id") or "") if role == "tool" else ""
        name = message.text("name") or names.get(call_id, "")
        messages.append(
            Message(
                _ROLES[role],
                text_of_parts(message, "content", ("text", "refusal")),
                message.text("reasoning_content") or message.text("reasoning") or None,
                calls,
                call_id,
                name if role == "tool" else "",
            )
        )
    return tuple(messages)


def _calls(message: Fields) -> tuple[ToolCall, ...]:
    calls = []
    for call in message.objects("tool_calls"):
        function = call.inner("function")
        if function is None:
            raise call.refuse("function", "is missing")
        arguments = arguments_object(function.text("arguments") or "")
        calls.append(ToolCall(call.text("id") or "", function.need_text("name"), arguments))
    return tuple(calls)
