"""What the transcript needs to know about one message."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MessageView:
    """One message of a conversation path, as the transcript shows it.

    `role` is "user", "assistant" or "system"; `status` is "complete", "streaming", "stopped" or "error";
    `title` stands in the header (a model's name) and `footer` below the text (tok/s, tokens, a cause).
    """

    id: str
    role: str
    text: str
    reasoning: str = ""
    status: str = "complete"
    footer: str = ""
    title: str = ""
