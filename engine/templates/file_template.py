"""What lays conversations out as text, and the template that came with a file."""

from collections.abc import Mapping
from typing import Any, Protocol

from engine.api.answer_format import AnswerFormat
from engine.api.errors import TemplateError
from engine.templates import renderer
from engine.templates.renderer import TemplateLimitError

_TOOL = {
    "type": "function",
    "function": {
        "name": "shown",
        "description": "a",
        "parameters": {"type": "object", "properties": {}, "required": []},
    },
}


class Template(Protocol):
    """What lays a conversation out as text."""

    text: str
    """Whatever of its own it may write."""
    inline_reasoning: bool
    """Whether the reasoning of old answers belongs into their contents."""
    supports_system: bool
    supports_tools: bool
    """Whether the tools that it is given reach the model."""

    def render(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool, **options: Any) -> str:
        """The rendered text; TemplateError when the template fails or asks for too much."""


class FileTemplate:
    """A template in jinja2's language. Nothing of it runs in this process."""

    def __init__(self, text: str, variables: Mapping[str, str], answer_format: AnswerFormat) -> None:
        """`variables`: what it sees beside messages and options. TemplateError when it cannot be used."""
        self.text = text
        self._variables = dict(variables)
        renderer.SHARED.check(text)
        old = answer_format.thought.replace("{}", "kept?")
        self.inline_reasoning = answer_format.thought_key not in text and self._shows(
            "kept?", say("user", "a"), say("assistant", old + "b"), say("user", "c")
        )
        self.supports_system = self._shows("shown?", say("system", "shown?"), say("user", "a"))
        self.supports_tools = "tools" in text and self._shows("shown", say("user", "a"), tools=[_TOOL])

    def render(self, messages: list[dict[str, Any]], **options: Any) -> str:
        """The rendered text; TemplateError when the template fails or asks for too much."""
        return renderer.SHARED.render(self.text, {**self._variables, **options, "messages": messages})

    def _shows(self, word: str, *messages: dict[str, Any], **options: Any) -> bool:
        try:
            return word in self.render(list(messages), add_generation_prompt=True, **options)
        except TemplateLimitError:
            raise
        except TemplateError:
            return False


def say(role: str, content: str) -> dict[str, Any]:
    """A message as templates see it."""
    return {"role": role, "content": content}
