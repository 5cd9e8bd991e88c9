"""Chats of Open WebUI's export: a list of chats, each with a `history` of messages by their ids."""

import html
import re

from app.chat.conversation import Role
from app.chat.marks import Marks, tags_from
from app.exchange.kept import KeptChat
from app.exchange.tree import Entry, ForeignChat, named_objects
from app.exchange.values import Fields, clean_text

_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT}
_DETAILS = re.compile(r"<details type=\"(\w+)\"[^>]{0,1000}>(.*?)</details>\s*", re.DOTALL)
_SUMMARY = re.compile(r"\s*<summary>[^<]*</summary>\n?")
_QUOTED = re.compile(r"^> ?", re.MULTILINE)


def read_open_webui(chat: Fields) -> KeptChat:
    """Return a chat; raises `ChatFileError` when anything in it is wrong.

    Reasoning, which stands in an answer as a fold, becomes reasoning; what tools wrote is left out.
    """
    inner = chat.fields("chat")
    history = inner.fields("history")
    nodes = named_objects(history, "messages")
    if not nodes:
        nodes = _in_a_row(inner.list_of_fields("messages"))
    read = ForeignChat(
        "open-webui",
        chat.text("id") or inner.name("id"),
        chat.text("title") or inner.text("title"),
        {key: _entry(key, node) for key, node in nodes.items()},
        [key for key, node in nodes.items() if node.text("parentId") not in nodes],
        history.text_or_none("currentId"),
        chat.time("created_at") or inner.time("timestamp"),
        chat.time("updated_at"),
        inner.fields("params").text("system") or inner.text("system"),
    )
    tags = _tags(inner) + _tags(chat.fields("meta"))
    return KeptChat(read.conversation(), Marks(chat.flag("pinned"), chat.flag("archived"), tags_from(tags)))


def _tags(fields: Fields) -> list[str]:
    found = fields.get("tags")
    listed = found if isinstance(found, list) else []
    named = (tag.get("name") if isinstance(tag, dict) else tag for tag in listed)
    return [clean_text(tag).replace(" ", "-") for tag in named if isinstance(tag, str)]


def _in_a_row(messages: list[Fields]) -> dict[str, Fields]:
    """Return the messages of a chat without a tree, each with the one behind it as its only child."""
    keys = [message.text("id") or str(at) for at, message in enumerate(messages)]
    found = {}
    for at, message in enumerate(messages):
        links = {"parentId": keys[at - 1] if at else None, "childrenIds": keys[at + 1 : at + 2]}
        found[keys[at]] = Fields(message.values | links, message.where)
    return found


def _entry(key: str, node: Fields) -> Entry:
    role = _ROLES.get(node.text("role"))
    entry = Entry(key, node.texts("childrenIds"), created=node.time("timestamp"))
    content = node.get("content")
    entry.text = _parts(content) if isinstance(content, list) else node.text("content")
    if role is Role.ASSISTANT:
        entry.text, entry.reasoning = _split(entry.text)
        entry.model = node.text_or_none("model")
    if entry.text or entry.reasoning:
        entry.role = role
    return entry


def _parts(content: list[object]) -> str:
    texts = (part.get("text") if isinstance(part, dict) else part for part in content)
    return "\n\n".join(clean_text(text) if isinstance(text, str) else "[attachment]" for text in texts)


def _split(text: str) -> tuple[str, str]:
    """Return an answer's text and its reasoning."""
    # Behind the last end no beginning is looked at: each would be followed to the end of the text.
    end = text.rfind("</details>") + len("</details>")
    folds = _DETAILS.findall(text, 0, end)
    if not folds:
        return text, ""
    thoughts = [_SUMMARY.sub("", inside, count=1) for kind, inside in folds if kind == "reasoning"]
    plain = [html.unescape(_QUOTED.sub("", thought)).strip() for thought in thoughts]
    rest = _DETAILS.sub("", text[:end]) + text[end:]
    return rest.strip(), "\n\n".join(part for part in plain if part)
