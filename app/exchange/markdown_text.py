"""A chat as Markdown: the branch that is shown, message by message."""

import re
import time

from app.chat.conversation import MessageNode, Role
from app.exchange.kept import KeptChat
from app.models.builtin import model_title

NAMES = {Role.USER: "You", Role.SYSTEM: "System", Role.TOOL: "Tool"}


def markdown_text(kept: KeptChat) -> str:
    """Return a chat with its title, its tags and who wrote what."""
    chat = kept.conversation
    parts = [f"# {' '.join(chat.title.split())}", f"*{heading_line(kept)}*"]
    if chat.system_prompt.strip():
        parts += ["## System prompt", chat.system_prompt.strip()]
    for node in chat.path():
        parts.append(f"## {author(node)}")
        if node.role is Role.TOOL:
            parts += [_fenced(call.text, "json") for call in node.calls] + [_fenced(node.text)]
            continue
        if node.reasoning.strip():
            reasoning = node.reasoning.strip()
            parts.append(f"<details>\n<summary>Reasoning</summary>\n\n{reasoning}\n\n</details>")
        parts.append(node.text.strip("\n"))
    return "\n\n".join(part for part in parts if part) + "\n"


def heading_line(kept: KeptChat) -> str:
    """Return when a chat was begun, and its tags."""
    begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(kept.conversation.created))
    return " · ".join([begun, *(f"#{tag}" for tag in kept.marks.tags)])


def author(node: MessageNode) -> str:
    """Return who wrote a message: an answer's model, a result's tool."""
    if node.role is Role.TOOL and node.calls:
        call = node.calls[0]
        return f"{NAMES[node.role]} {call.name}" + (f" ({call.server})" if call.server else "")
    if node.role is Role.ASSISTANT:
        return model_title(node.model) if node.model else "Answer"
    return NAMES[node.role]


def _fenced(text: str, language: str = "") -> str:
    longest = max((len(ticks) for ticks in re.findall("`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
