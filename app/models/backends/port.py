"""What a chat needs of whatever answers it, as types only: the engine's models and endpoints' both fit."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from app.models.port import Counting, GenerationPort, ModelPort
from app.models.recommended import Recommended
from engine import (
    Constraint,
    Priority,
    Prompt,
    RequestError,
    SamplingParams,
    Thinking,
    ThinkingSupport,
    ToolFormat,
)

if TYPE_CHECKING:
    from engine import KeptAnswer, Message


class ContextFullError(RequestError):
    """A chat and its next message are longer than what can be read."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """How an answer is to begin: the ids of one that there is, then a text."""

    ids: tuple[int, ...] = ()
    text: str = ""


NO_BEGINNING = Beginning()


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat, for its next answer."""

    messages: "Sequence[Message]"
    kept: "Mapping[int, KeptAnswer]"
    """By index, the answers whose token ids the model produced."""
    sampling: SamplingParams
    max_tokens: int | None
    """The longest answer that is allowed; None: as the model's makers recommend, else no limit."""
    chosen: Collection[str]
    """Values of `sampling`, and `max_tokens`, that stay whatever the model's makers recommend."""
    thinking: Thinking = field(default_factory=Thinking)
    beginning: Beginning = NO_BEGINNING
    stop: tuple[str, ...] = ()
    priority: Priority = Priority.NORMAL
    label: str = ""
    owner: str = ""
    """The chat's id."""
    constraint: Constraint | None = None
    """What the answer is held to, by its kind and text alone; checked before."""
    in_chat: bool = True
    """Whether it is a chat's question, not a single one."""
    tools: Sequence[Mapping[str, Any]] = ()
    """What the model may call, in OpenAI's form."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An answer that was asked for."""

    generation: GenerationPort
    prompt: Prompt
    """How its stream is read. The ids are the question's, and none where they are not known here."""
    thinking: Thinking
    """What of the chat's choice has an effect."""
    lacks: str | None
    """Which part of it has none."""
    max_tokens: int | None
    """The most tokens that were asked for."""
    again: "Callable[[SamplingParams, Collection[str]], Asked]"
    """Asks the same once more under other sampling, of which some values were chosen."""
    answered: int = 0
    """Ids of the answer's beginning that come again, first in the stream."""
    go_on: "Callable[[Sequence[int]], Asked] | None" = None
    """Goes on behind these ids of the answer; None where answers have no ids."""
    tool_format: ToolFormat | None = None
    """How calls of tools stand in its text; None where they do not."""
    knows_tools: bool = False
    """Whether the model was told of the tools that were offered."""


class ChatModel(Protocol):
    """A model that answers chats."""

    @property
    def path(self) -> Path:
        """Its file, or what stands for a model that has none here."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def kind(self) -> str:
        """A word on what it is, such as its quantization."""

    @property
    def local(self) -> ModelPort | None:
        """The engine's model that it is; None: it runs elsewhere."""

    @property
    def context_length(self) -> int | None:
        """Most tokens of one chat that the model can read; None: not known."""

    @property
    def max_tokens(self) -> int | None:
        """Most tokens of one chat; less than `context_length` where context memory is short."""

    @property
    def continues(self) -> bool:
        """Whether it goes on with an answer that has begun."""

    @property
    def warnings(self) -> Sequence[str]:
        """What is unusual about it, for the reader."""

    @property
    def counter(self) -> Counting | None:
        """What counts tokens of texts; None where they cannot be counted here."""

    @property
    def thinking_support(self) -> ThinkingSupport:
        """What it understands of a choice how much to think; not for the UI's thread."""

    def recommended(self) -> Recommended:
        """Return the sampling that its makers recommend; not for the UI's thread."""

    def chat(self, request: ChatRequest) -> Asked:
        """Ask for an answer; not for the UI's thread, which templates may keep waiting.

        Raises `ContextFullError` with numbers when the chat is too long, `EngineError` where nothing can
        be asked.
        """
