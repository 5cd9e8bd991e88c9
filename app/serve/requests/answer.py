"""One generation as the pieces that every protocol tells of: thoughts, text, calls of tools, its end."""

from dataclasses import dataclass
from enum import StrEnum

from app.chat.reasoning import Part, splitter_for
from app.tools.calls import CallReader, Tools
from engine import (
    ARGUMENTS_MARK,
    CALL_ID_MARK,
    Finished,
    FinishReason,
    Prompt,
    TextDelta,
    TokenLogprobs,
    ToolCall,
    ToolFormat,
)


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of what the model thinks before it answers."""

    text: str


Scores = tuple[tuple[int, TokenLogprobs], ...]
"""Tokens with what the request asks of them."""


@dataclass(frozen=True, slots=True)
class Said:
    """A piece of the answer."""

    text: str
    scores: Scores = ()
    """Of the tokens that it comes from; a piece without text may have some."""


class Ending(StrEnum):
    """Why an answer ended."""

    STOP = "stop"
    STOP_STRING = "stop_string"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Ended:
    """The last piece."""

    ending: Ending
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    stop_string: str | None = None
    error: str = ""
    """Why it failed."""


Piece = Thought | Said | ToolCall | Ended

_ENDINGS = {
    FinishReason.STOP: Ending.STOP,
    FinishReason.STOP_STRING: Ending.STOP_STRING,
    FinishReason.LENGTH: Ending.LENGTH,
}


class AnswerReader:
    """Turns one generation's events into pieces."""

    def __init__(
        self, prompt: Prompt | None, row: ToolFormat | None, tools: Tools, *, one_call: bool = False
    ) -> None:
        """prompt: None for text as it comes; one_call: nothing behind the first call is told."""
        self._split = (
            splitter_for(prompt.answer_format, prompt.starts_in_reasoning) if prompt is not None else None
        )
        self._calls = CallReader(row, tools) if row is not None else None
        self._marks = (
            frozenset((row.opens, row.closes, ARGUMENTS_MARK, CALL_ID_MARK))
            if row is not None
            else frozenset[str]()
        )
        self._one_call = one_call
        self.called = False
        """Whether a tool was called."""
        self.thought_tokens = 0

    @property
    def over(self) -> bool:
        """Whether nothing that may come is told."""
        return self.called and self._one_call

    @property
    def thinking(self) -> bool:
        """Whether what comes belongs to thoughts in front of the answer."""
        return self._split is not None and self._split.thinking and not self._split.answering

    def take(self, delta: TextDelta) -> list[Piece]:
        """What one event tells."""
        pieces = self._delta(delta)
        if delta.logprobs is None or (self._split is not None and (delta.marker or self._split.thinking)):
            return pieces
        return [*pieces, Said("", ((delta.token_ids[0], delta.logprobs),))]

    def finish(self, finished: Finished, prompt_tokens: int, cached_tokens: int, written: int) -> list[Piece]:
        """The last pieces of a choice that ended so."""
        return [*self._flush(), self._end(finished, prompt_tokens, cached_tokens, written)]

    def _end(self, finished: Finished, prompt_tokens: int, cached_tokens: int, written: int) -> Ended:
        ending = _ENDINGS.get(finished.reason, Ending.FAILED)
        if self.called and (self.over or ending is not Ending.FAILED):
            ending = Ending.TOOL_CALLS
        error = finished.error or "the server stops serving" if ending is Ending.FAILED else ""
        return Ended(
            ending,
            prompt_tokens,
            cached_tokens,
            written,
            self.thought_tokens,
            finished.stop_string if ending is Ending.STOP_STRING else None,
            error,
        )

    def _delta(self, event: TextDelta) -> list[Piece]:
        if self._split is None:
            return [Said(event.text)] if event.text else []
        text, marker = event.text, event.marker
        if marker and marker in self._marks:
            # The mark of a call is read as text, with what stands inside the call.
            text, marker = marker, ""
        parts = self._split.push(text, marker)
        if self._split.entered and not self._split.answering:
            self.thought_tokens += len(event.token_ids)
        return self._pieces(parts)

    def _flush(self) -> list[Piece]:
        pieces = self._pieces(self._split.flush()) if self._split is not None else []
        if self._calls is not None:
            pieces += self._called_in(self._calls.flush())
        return pieces

    def _pieces(self, parts: list[tuple[Part, str]]) -> list[Piece]:
        pieces: list[Piece] = []
        for part, text in parts:
            if part is Part.REASONING:
                pieces.append(Thought(text))
            elif self._calls is None:
                pieces.append(Said(text))
            else:
                pieces += self._called_in(self._calls.push(text))
        return pieces

    def _called_in(self, found: list[str | ToolCall]) -> list[Piece]:
        pieces: list[Piece] = []
        for one in found:
            if self.over:
                break
            self.called |= isinstance(one, ToolCall)
            pieces.append(Said(one) if isinstance(one, str) else one)
        return pieces
