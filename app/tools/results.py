"""What a tool gave back, as text that a model reads: bounded, with a note for what is left out."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from app.settings.words import size_text


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What came of one call."""

    text: str
    failed: bool = False
    """Whether there is no result: the text says why."""


def result_of(content: Iterable[Any], structured: Any, *, failed: bool, most_bytes: int) -> ToolResult:
    """Return the texts of a result's parts, in order.

    structured: what stands for a result without parts; failed: whether the tool itself says that it failed.
    """
    parts = [_part(part) for part in content]
    text = "\n".join(part for part in parts if part)
    if not text and structured is not None:
        text = _json(structured)
    return ToolResult(_bounded(text or "(no output)", most_bytes), failed)


def _part(part: Any) -> str:
    if part.type == "text":
        return str(part.text)
    if part.type in ("image", "audio"):
        return f"[{part.type} left out: {part.mime_type}, {size_text(len(part.data) * 3 // 4)}]"
    if part.type == "resource_link":
        return f"[resource {part.name}: {part.uri}]"
    resource = getattr(part, "resource", None)
    text = getattr(resource, "text", None)
    if isinstance(text, str):
        return text
    return f"[{part.type} left out: {getattr(resource, 'mime_type', None) or 'of no known type'}]"


def _json(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False, indent=1)


def _bounded(text: str, most_bytes: int) -> str:
    data = text.encode("utf-8", "replace")
    if len(data) <= most_bytes:
        return data.decode()
    kept = data[:most_bytes].decode("utf-8", "ignore")
    return f"{kept}\n[cut here: {size_text(most_bytes)} of {size_text(len(data))} are shown]"
