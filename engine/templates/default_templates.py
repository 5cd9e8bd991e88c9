"""Templates of our own, for files without one or with one that fails. Nothing can fail in them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Messages = list[dict[str, Any]]


@dataclass(slots=True)
class Marked:
    """Every message between tokens that the vocabulary has."""

    name: str
    before: str
    """`{}` stands for the role."""
    after: str
    tokens: tuple[str, ...]
    """Those that make a vocabulary one of this layout."""
    assistant: str = "assistant"
    """What answers have for a role."""
    answer: str = ""
    """In front of old answers, where the role does not say it all."""
    begin: str = ""
    """What the model goes on from, where it writes part of that itself."""
    supports_system: bool = True
    supports_tools: bool = False
    inline_reasoning: bool = True
    text: str = ""

    def render(self, messages: Messages, *, add_generation_prompt: bool, **_: Any) -> str:
        """The messages, and what an answer begins with."""
        answer = self.answer or self.before.replace("{}", self.assistant)
        turns = [
            (answer if turn["role"] == "assistant" else self.before.replace("{}", turn["role"]))
            + turn["content"]
            + self.after
            for turn in messages
        ]
        return "".join(turns) + ((self.begin or answer) if add_generation_prompt else "")


_LAYOUTS = (
    Marked("ChatML", "<|im_start|>{}\n", "<|im_end|>\n", ("<|im_start|>", "<|im_end|>")),
    Marked(
        "Llama 3's layout",
        "<|start_header_id|>{}<|end_header_id|>\n\n",
        "<|eot_id|>",
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    ),
    Marked(
        "Gemma's layout",
        "<start_of_turn>{}\n",
        "<end_of_turn>\n",
        ("<start_of_turn>", "<end_of_turn>"),
        assistant="model",
        supports_system=False,
    ),
    Marked("Gemma 4's layout", "<|turn>{}\n", "<turn|>\n", ("<|turn>", "<turn|>"), assistant="model"),
    Marked(
        "Harmony",
        "<|start|>{}<|message|>",
        "<|end|>",
        ("<|start|>", "<|channel|>", "<|message|>", "<|end|>"),
        answer="<|start|>assistant<|channel|>final<|message|>",
        begin="<|start|>assistant",
        inline_reasoning=False,
    ),
    Marked("Phi's layout", "<|{}|>\n", "<|end|>\n", ("<|user|>", "<|assistant|>", "<|end|>")),
)


class Plain:
    """Text that every model can read."""

    name = "plain User:/Assistant: text"
    text = ""
    inline_reasoning = supports_system = True
    supports_tools = False

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


def default_template(control_tokens: Mapping[str, int], bos_token: str) -> Marked | Plain:
    """The layout whose tokens the vocabulary has, else plain text."""
    fitting = (row for row in _LAYOUTS if all(token in control_tokens for token in row.tokens))
    return next(fitting, None) or Plain(bos_token)
