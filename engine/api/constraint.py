"""What an answer is held to: plain data, of which `engine.constraints` makes grammars."""

from dataclasses import dataclass
from enum import StrEnum

from engine.api.answer_format import AnswerFormat
from engine.api.errors import RequestError
from engine.api.tool_format import ToolFormat


class ConstraintKind(StrEnum):
    """What the text of a constraint is."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    GRAMMAR = "grammar"
    """In Lark's form, or llama.cpp's GBNF."""
    CALLS = "calls"
    """A JSON list of tools in OpenAI's form: the answer is calls of them and nothing else."""
    TOOLS = "tools"
    """The same list: the answer is free, and a call in it is a call of one of these."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """One answer's; thoughts in front of it are free."""

    kind: ConstraintKind
    text: str
    answer_format: AnswerFormat | None = None
    """That of the thoughts which may stand in front; None: none may."""
    in_thoughts: bool = False
    """Whether the prompt has begun them."""
    tool_format: ToolFormat | None = None
    """How the model calls tools, where the answer may call some."""
    calls: str = ""
    """A list of tools as `CALLS` has it: the answer is calls of them, or as the text says; "" for none."""


class ConstraintError(RequestError):
    """A constraint that is no grammar, or asks for what cannot be held."""

    def __init__(self, place: str, why: str) -> None:
        """place: where in the constraint's text, such as "properties.age"; empty for all of it."""
        super().__init__(f"constraint: {place}: {why}" if place else f"constraint: {why}")
        self.place, self.why = place, why
