"""A chat as Markdown: the branch that is shown, message by message."""

import time

from app.chat.conversation import MessageNode, Role
from app.exchange.kept import KeptChat
from app.models.builtin import model_title

NAMES = {Role.USER: "You", Role.SYSTEM: "System"}


def markdown_text(kept: KeptChat) -> str:
    """Return a chat with its title, its tags and who wrote what."""
    chat = kept.conversation
    parts = [f"# {' '.join(chat.title.split())}", f"*{heading_line(kept)}*"]
    if chat.system_prompt.strip():
        parts += ["## System prompt", chat.system_prompt.strip()]
    for node in chat.path():
        parts.append(f"## {author(node)}")
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
    """Return who wrote a message: an answer's model."""
    if node.role is Role.ASSISTANT:
        return model_title(node.model) if node.model else "Answer"
    return NAMES[node.role]
