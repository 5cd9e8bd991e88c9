"""One answer out of the events of a server's stream: its text, its thoughts, what it cost, how it ended."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from app.endpoints.errors import EndpointError, one_line, words_of
from app.endpoints.tool_calls import CallParts
from engine import THINK, AnswerFormat, Finished, FinishReason, Prompt, TagFormat, TextDelta, ToolCall

_TAGS: TagFormat = replace(THINK, anywhere=True)
FORMAT: AnswerFormat = _TAGS
"""How the deltas tell thoughts from the answer: by marks, or by tags that a server has left in the text."""
_THOUGHTS = ("reasoning_content", "reasoning")
_REASONS = {"length": FinishReason.LENGTH}
DONE = "[DONE]"
_MOST = 1 << 40
"""No figure of an answer is larger."""


def prompt_of() -> Prompt:
    """How such a stream is read; nobody here knows the ids of the question."""
    return Prompt([], starts_in_reasoning=False, warning=None, answer_format=FORMAT)


class AnswerReader:
    """Takes the data of events, the first to the last."""

    def __init__(self, name: str, clock: Callable[[], float] = time.perf_counter) -> None:
        """name: what messages call the server."""
        self.begun = False
        """Whether anything of the answer has come."""
        self.ended = False
        """Whether the server has said how it ended."""
        self._name = name
        self._clock = clock
        self._asked = clock()
        self._first = self._last = 0.0
        self._thinks = False
        self._calls = CallParts()
        self._reason = ""
        self._usage: Mapping[str, Any] = {}
        self._timings: Mapping[str, Any] = {}

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls of tools that have come, the last of them perhaps in part."""
        return self._calls.calls

    def take(self, data: str) -> Iterator[TextDelta]:
        """Take an event; raises `EndpointError` for one that is none, or that tells of an error."""
        if data.strip() == DONE:
            self.ended = True
            return
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, Mapping):
            raise EndpointError(f"{self._name} sent what is no event of an answer: {one_line(data)[:80]}")
        if event.get("error"):
            said = one_line(words_of(event)) or "it does not say why"
            raise EndpointError(f"{self._name} ended the answer: {said}")
        self._usage = _object(event.get("usage")) or self._usage
        self._timings = _object(event.get("timings")) or self._timings
        choices = event.get("choices")
        if isinstance(choices, list) and choices:
            yield from self._choice(_object(choices[0]))

    def _choice(self, choice: Mapping[str, Any]) -> Iterator[TextDelta]:
        delta = _object(choice.get("delta"))
        thought = next((text for key in _THOUGHTS if (text := _text(delta.get(key)))), "")
        text = _text(delta.get("content"))
        called = self._calls.take(delta.get("tool_calls"))
        if thought or text or called:
            self._last = self._clock()
            self._first = self._first if self.begun else self._last
            self.begun = True
        if thought:
            if not self._thinks:
                yield TextDelta("", (), _TAGS.opens)
            self._thinks = True
            yield TextDelta(thought, ())
        if text:
            if self._thinks:
                yield TextDelta("", (), _TAGS.closes)
            self._thinks = False
            yield TextDelta(text, ())
        if reason := _text(choice.get("finish_reason")):
            self._reason, self.ended = reason, True

    def finished(self) -> Finished:
        """How it ended, once it has."""
        if self._reason == "content_filter":
            return self.broken_off(
                f"{self._name} held the rest back: its filter of contents ended the answer"
            )
        return self._finished(_REASONS.get(self._reason, FinishReason.STOP), None)

    def cancelled(self) -> Finished:
        """That somebody here has ended it."""
        return self._finished(FinishReason.CANCELLED, None)

    def broken_off(self, error: str) -> Finished:
        """That something else has."""
        return self._finished(FinishReason.ERROR, error)

    def _finished(self, reason: FinishReason, error: str | None) -> Finished:
        """The server's own counts; speeds are measured here where it tells none. 0: not known."""
        usage, timings = self._usage, self._timings
        written = _count(usage.get("completion_tokens")) or _count(timings.get("predicted_n"))
        cached = _count(_object(usage.get("prompt_tokens_details")).get("cached_tokens"))
        cached = cached or _count(timings.get("cache_n"))
        read = _count(usage.get("prompt_tokens")) or cached + _count(timings.get("prompt_n"))
        seconds = self._last - self._first
        speed = (written - 1) / seconds if written > 1 and seconds > 0 else 0.0
        told = timings.get("predicted_per_second")
        return Finished(
            reason,
            error,
            prompt_tokens=read,
            cached_tokens=min(cached, read),
            completion_tokens=written,
            queue_ms=0.0,
            ttft_ms=1000 * (self._first - self._asked) if self.begun else None,
            tok_s=float(told) if isinstance(told, int | float) and 0 < told < _MOST else speed,
        )


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    """A string without halves of characters, which no file could hold."""
    if not isinstance(value, str) or not value:
        return ""
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _count(value: Any) -> int:
    return value if type(value) is int and 0 < value < _MOST else 0
