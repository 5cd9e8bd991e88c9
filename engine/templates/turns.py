"""The messages of a conversation, and what is done to them for templates that want less."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from engine.api.answer_format import THINK, AnswerFormat
from engine.api.errors import TemplateError
from engine.api.request import TextDelta
from engine.api.tool_format import ToolCall

ROLES = ("system", "user", "assistant", "tool", "developer")
_THINK = re.compile(r"\s*<think>(.*?)</think>\s*(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation, as text."""

    role: str
    content: str
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    """Of an answer: the tools that it asked for."""
    tool_call_id: str = ""
    """Of a tool's result: the call that it belongs to."""
    tool_name: str = ""
    """Of a tool's result: the tool, where that is known."""


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """The ids that the model sampled for an answer."""

    ids: tuple[int, ...]
    reasoning_ids: int = 0
    """How many leading ids come before the answer proper: reasoning, with all its marks."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation as the model reads it."""

    ids: list[int]
    starts_in_reasoning: bool
    """Whether it has already begun the answer's reasoning."""
    warning: str | None
    """Why the file's template was not used for it, where it failed."""
    answer_format: AnswerFormat = THINK
    """How the model sets its reasoning apart from its answer."""
    ending: tuple[TextDelta, ...] = ()
    """What ends the reasoning and begins the answer, as if the model had written it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A message on its way through the template; `index` is its place in the conversation."""

    role: str
    content: str
    reasoning: str | None
    index: int
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    tool_name: str = ""

    @property
    def about_tools(self) -> bool:
        """Whether it is more than text."""
        return bool(self.tool_calls or self.role == "tool")


def turn_of(message: Message, index: int) -> Turn:
    """The message with reasoning split off raw answers; TemplateError for a role that is none."""
    if message.role not in ROLES:
        raise TemplateError(f"message {index}: the role {message.role!r} is not one of {', '.join(ROLES)}.")
    # The string itself, whatever enumeration the role is from: only plain values go to the worker.
    role = ROLES[ROLES.index(message.role)]
    about_tools = message.tool_calls, message.tool_call_id, message.tool_name
    turn = Turn(role, message.content, message.reasoning or None, index, *about_tools)
    found = _THINK.fullmatch(turn.content) if turn.role == "assistant" and not turn.reasoning else None
    if found:
        return replace(turn, reasoning=found[1].strip("\n"), content=found[2])
    return turn


def fold_system(turns: list[Turn]) -> list[Turn]:
    """Without system messages: their text goes in front of the next user's message."""
    out: list[Turn] = []
    waiting: list[str] = []
    for turn in turns:
        if turn.role in ("system", "developer"):
            waiting.append(turn.content)
        elif turn.role == "user" and waiting:
            out.append(replace(turn, content="\n\n".join([*waiting, turn.content])))
            waiting = []
        else:
            out.append(turn)
    if waiting:
        out.append(Turn("user", "\n\n".join(waiting), None, len(turns)))
    return out


def merge_neighbours(turns: list[Turn], kept: Mapping[int, KeptAnswer]) -> list[Turn]:
    """Neighbours of one role as one message, for templates that want roles to alternate."""
    out: list[Turn] = []
    for turn in turns:
        last = out[-1] if out else None
        together = last and last.role == turn.role and not (last.about_tools or turn.about_tools)
        if last and together and not {last.index, turn.index} & kept.keys():
            out[-1] = replace(last, content=f"{last.content}\n\n{turn.content}")
        else:
            out.append(turn)
    return out
