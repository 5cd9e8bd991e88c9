"""Templates of our own, for files without one or with one that fails. Nothing can fail in them."""

from collections.abc import Mapping
from typing import Any

Messages = list[dict[str, Any]]


class ChatML:
    """The usual layout of vocabularies with its tokens."""

    name = "ChatML"
    text = ""
    inline_reasoning = supports_system = True

    def render(self, messages: Messages, *, add_generation_prompt: bool, **_: Any) -> str:
        """Every message between its tokens."""
        turns = [f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in messages]
        return "".join(turns) + ("<|im_start|>assistant\n" if add_generation_prompt else "")


class Plain:
    """Text that every model can read."""

    name = "plain User:/Assistant: text"
    text = ""
    inline_reasoning = supports_system = True

    def __init__(self, bos_token: str) -> None:
        self._bos_token = bos_token

    def render(self, messages: Messages, *, add_generation_prompt: bool, **_: Any) -> str:
        """Every message behind its author, what the system says in front of all."""
        before = {"system": "", "assistant": "Assistant: "}
        turns = [
            before.get(turn["role"], "User: ")
            + turn["content"]
            + ("\n\n" if turn["role"] == "system" else "\n")
            for turn in messages
        ]
        return self._bos_token + "".join(turns) + ("Assistant:" if add_generation_prompt else "")


def default_template(control_tokens: Mapping[str, int], bos_token: str) -> ChatML | Plain:
    """ChatML when the vocabulary has its tokens, else plain text."""
    if "<|im_start|>" in control_tokens and "<|im_end|>" in control_tokens:
        return ChatML()
    return Plain(bos_token)
