"""What serving needs of the engine, as types only: the real engine and a scripted one both fit."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from app.models.port import SequencePort
from engine import Message, Prompt, Request, Thinking, ToolFormat

BY_ITSELF = Thinking()


class ServedTemplate(Protocol):
    """A model's chat template."""

    @property
    def tool_format(self) -> ToolFormat | None:
        """How the model calls tools; None where it cannot be given any."""

    def prompt(
        self,
        messages: Sequence[Message],
        *,
        thinking: Thinking = BY_ITSELF,
        tools: Sequence[Mapping[str, Any]] | None = None,
        strict: bool = False,
    ) -> Prompt:
        """Return the conversation as the model reads it; `strict`: by its own template or not at all."""


class ServedTokenizer(Protocol):
    """A model's tokenizer."""

    @property
    def bos_id(self) -> int | None:
        """What begins a text."""

    @property
    def add_bos(self) -> bool:
        """Whether texts begin with it."""

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Return the ids of a text, with `special` those of control tokens too."""

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Return the text of ids."""


class ServedModel(Protocol):
    """A model that answers."""

    @property
    def name(self) -> str:
        """What the engine calls it."""

    @property
    def path(self) -> Path:
        """Its file; no client is told."""

    @property
    def max_tokens(self) -> int:
        """Most tokens of one sequence."""

    @property
    def tokenizer(self) -> ServedTokenizer:
        """Its tokenizer."""

    @property
    def template(self) -> ServedTemplate:
        """Its chat template."""

    def submit(self, request: Request) -> SequencePort:
        """Start a generation; raises `RequestError` when it can never fit."""
