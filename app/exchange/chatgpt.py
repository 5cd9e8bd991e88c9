"""Chats of ChatGPT's export: `conversations.json`, a list of chats, each a `mapping` of messages."""

from app.chat.conversation import Role
from app.exchange.kept import KeptChat
from app.exchange.tree import Entry, ForeignChat, named_objects
from app.exchange.values import Fields, clean_text

_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT}


def read_chatgpt(chat: Fields) -> KeptChat:
    """Return a chat; raises `ChatFileError` when anything in it is wrong.

    What tools wrote and what ChatGPT hides is left out, and a picture is its name.
    """
    nodes = named_objects(chat, "mapping")
    key = chat.text("conversation_id") or chat.name("id")
    read = ForeignChat(
        "chatgpt",
        key,
        chat.text("title"),
        {key: _entry(key, node) for key, node in nodes.items()},
        [key for key, node in nodes.items() if node.text("parent") not in nodes],
        chat.text_or_none("current_node"),
        chat.time("create_time"),
        chat.time("update_time"),
    )
    return KeptChat(read.conversation())


def _entry(key: str, node: Fields) -> Entry:
    message, children = node.fields("message"), node.texts("children")
    metadata = message.fields("metadata")
    role = _ROLES.get(message.fields("author").text("role"))
    entry = Entry(key, children, created=message.time("create_time"))
    if role is None or metadata.get("is_visually_hidden_from_conversation") is True:
        return entry
    if message.text("recipient") not in ("", "all"):
        return entry
    entry.text, entry.reasoning = _contents(message.fields("content"))
    if entry.text or entry.reasoning:
        entry.role = role
        entry.model = metadata.text_or_none("model_slug") if role is Role.ASSISTANT else None
    return entry


def _contents(content: Fields) -> tuple[str, str]:
    """Return a message's text and reasoning."""
    kind = content.text("content_type")
    if kind == "thoughts":
        thoughts = content.list_of_fields("thoughts")
        return "", "\n\n".join(part for part in (_thought(thought) for thought in thoughts) if part)
    if kind == "code":
        return f"```\n{content.text('text')}\n```", ""
    parts = content.get("parts")
    found = [_part(part) for part in parts] if isinstance(parts, list) else []
    return "\n\n".join(part for part in found if part), ""


def _thought(thought: Fields) -> str:
    return "\n".join(part for part in (thought.text("summary"), thought.text("content")) if part)


def _part(part: object) -> str:
    if isinstance(part, str):
        return clean_text(part)
    if not isinstance(part, dict):
        return ""
    if isinstance(part.get("text"), str):
        return clean_text(part["text"])
    kind = part.get("content_type")
    name = kind.removesuffix("_asset_pointer").replace("_", " ") if isinstance(kind, str) else "attachment"
    return f"[{clean_text(name)}]"
