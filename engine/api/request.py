"""What the app says to the engine and what comes back: plain, frozen data.

`Request` and `SamplingParams` are checked once, on creation, so that nothing deeper in the engine
meets a value out of range.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from numbers import Integral, Real
from types import MappingProxyType
from typing import SupportsIndex

from engine.api.constraint import Constraint
from engine.api.errors import RequestError

MOST_TOP_LOGPROBS = 20
MAX_BIAS = 1e6
"""Largest logit bias: far above every logit, and no sum with one leaves float32."""


class FinishReason(StrEnum):
    """Why a generation ended; every generation ends with exactly one of these."""

    STOP = "stop"
    """The model sampled an end-of-generation token."""
    STOP_STRING = "stop_string"
    LENGTH = "length"
    """`max_tokens`, the model's context length or the KV budget was reached."""
    CANCELLED = "cancelled"
    ERROR = "error"


class Action(StrEnum):
    """What may be asked of a running generation."""

    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"


class Priority(StrEnum):
    """How a sequence shares the prefill budget with others."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. Temperature 0 is greedy; `None` seed draws one at submit.

    Order of application: penalties and bias on the logits, then temperature, top-k, top-p, min-p.
    """

    temperature: float = 0.7
    top_k: int = 40
    """Keep the k most probable tokens; 0 keeps all."""
    top_p: float = 0.95
    min_p: float = 0.05
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    """Added to the logits of tokens; -inf, and whatever is below `-MAX_BIAS`, forbids one.

    Ids that a model lacks have no effect.
    """
    seed: int | None = None

    def __post_init__(self) -> None:
        """Raise `RequestError` for the first field out of range."""
        _in_range("temperature", self.temperature, 0.0, 100.0)
        _whole("top_k", self.top_k)
        _in_range("top_k", self.top_k, 0, 1 << 30)
        _in_range("top_p", self.top_p, 0.0, 1.0)
        _in_range("min_p", self.min_p, 0.0, 1.0)
        _in_range("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _in_range("frequency_penalty", self.frequency_penalty, -100.0, 100.0)
        _in_range("presence_penalty", self.presence_penalty, -100.0, 100.0)
        if self.seed is not None:
            _whole("seed", self.seed)
            _in_range("seed", self.seed, 0, (1 << 64) - 1)
        for token_id, bias in self.logit_bias.items():
            _whole("logit_bias", token_id)
            _in_range("logit_bias", token_id, 0, (1 << 31) - 1)
            _in_range(f"logit_bias: {token_id}", bias, -math.inf, MAX_BIAS)
        if any(bias < -MAX_BIAS for bias in self.logit_bias.values()):
            exact = {i: -math.inf if bias < -MAX_BIAS else bias for i, bias in self.logit_bias.items()}
            object.__setattr__(self, "logit_bias", MappingProxyType(exact))


@dataclass(frozen=True, slots=True)
class Request:
    """One generation to run: token ids in, sampling, and when to stop."""

    prompt_ids: tuple[int, ...] = field(repr=False)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    """Most tokens to generate; None runs to the context's end."""
    stop: tuple[str, ...] = ()
    """Stop strings; the text ends before the first that appears."""
    ignore_eog: bool = False
    """Go on after end-of-generation tokens (for benchmarks)."""
    priority: Priority = Priority.NORMAL
    label: str = ""
    """Shown in statistics, e.g. the tab's title."""
    owner: str = ""
    """Whose context it is on disk, e.g. the chat's id: `SavedKV.forget` deletes it; empty: nobody's."""
    answered: int = 0
    """Of the prompt's last ids, how many are an answer's beginning that this generation continues.

    They come first in the stream, and penalties count them as answered; stop strings are looked for in
    what is new.
    """
    constraint: Constraint | None = None
    """What the answer is held to, from its first token on."""
    top_logprobs: int | None = None
    """How many tokens each event tells beside its own, with their log-probabilities; None: of none at all."""

    def __post_init__(self) -> None:
        """Raise `RequestError` for an empty prompt or a bad limit."""
        if not self.prompt_ids:
            raise RequestError("prompt_ids: the prompt is empty; give at least one token")
        _whole("answered", self.answered)
        _in_range("answered", self.answered, 0, len(self.prompt_ids))
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens)
            if self.max_tokens < 1:
                raise RequestError(f"max_tokens: {self.max_tokens} is not at least 1")
        if self.priority not in set(Priority):
            raise RequestError(f"priority: {self.priority!r} is not one of {', '.join(Priority)}")
        if self.constraint is not None and self.ignore_eog:
            raise RequestError("ignore_eog: an answer that is held to a constraint ends where that does")
        if self.top_logprobs is not None:
            _whole("top_logprobs", self.top_logprobs)
            _in_range("top_logprobs", self.top_logprobs, 0, MOST_TOP_LOGPROBS)
        _strings("stop", self.stop)
        if any(not s for s in self.stop):
            raise RequestError("stop: an empty stop string would end every answer at once")


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely a token was, by the model alone: before penalties, biases, temperature and constraints."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(id, log-probability) of the likeliest tokens in its place, the best first."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer: printable text and the ids that it came from.

    `text` may be empty (bytes of an unfinished character, a possible stop string); the ids of all
    deltas joined are the answer's ids, and the texts joined are its text.
    """

    text: str
    token_ids: tuple[int, ...]
    marker: str = ""
    """The token where it may part an answer, see `answer_format` and `tool_format`; `text` is then what it
    stands for in plain text, "" for a control token."""
    logprobs: TokenLogprobs | None = None
    """Of its one token, where the request asks for them."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a generation."""

    reason: FinishReason
    error: str | None
    """For `ERROR`: a readable cause."""
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt, how many came from the prefix cache."""
    completion_tokens: int
    queue_ms: float
    """From submit to the first tick that ran a token of it."""
    ttft_ms: float | None
    """From submit to the first sampled token."""
    tok_s: float
    """Decode speed after the first token; 0 with fewer than two tokens."""
    stop_string: str | None = None
    saved_ms: float = 0.0
    """What reading the cached tokens would have taken, by the cost model."""


Event = TextDelta | Finished


def check_leaves_a_token(sampling: SamplingParams, vocab_size: int) -> None:
    """Raise `RequestError` when the logit bias forbids all tokens of a model with ids below `vocab_size`."""
    forbidden = [i for i, bias in sampling.logit_bias.items() if bias == -math.inf and i < vocab_size]
    if len(forbidden) >= vocab_size:
        raise RequestError(f"logit_bias: forbids all {vocab_size} tokens of the model; leave at least one")


def without_tokens(request: Request, token_ids: Iterable[int]) -> Request:
    """The request with an answer that may hold none of these tokens, whatever biases it gives them."""
    sampling = request.sampling
    bias = {**sampling.logit_bias, **dict.fromkeys(token_ids, -math.inf)}
    return replace(request, sampling=replace(sampling, logit_bias=bias))


def check_token_ids(ids: tuple[int, ...], vocab_size: int) -> None:
    """Raise `RequestError` for the first id that is no whole number or no token of the vocabulary."""
    odd = [kind.__name__ for kind in set(map(type, ids)) if not issubclass(kind, SupportsIndex)]
    if odd:
        raise RequestError(f"prompt_ids: token ids are whole numbers, not {odd[0]}")
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        bad = next(i for i in ids if not 0 <= i < vocab_size)
        raise RequestError(
            f"prompt_ids: {bad} is not a token of this model; ids go from 0 to {vocab_size - 1}"
        )


def _whole(name: str, value: object) -> None:
    if not isinstance(value, Integral):
        raise RequestError(f"{name}: {value!r} is not a whole number")


def _strings(name: str, value: object) -> None:
    if not isinstance(value, tuple | list) or not all(isinstance(item, str) for item in value):
        raise RequestError(f"{name}: {value!r} is not a tuple of strings")


def _number(name: str, value: object) -> None:
    if not isinstance(value, Real):
        raise RequestError(f"{name}: {value!r} is not a number")


def _in_range(name: str, value: float, low: float, high: float) -> None:
    _number(name, value)
    if not low <= value <= high:
        raise RequestError(f"{name}: {value} is not between {low} and {high}")
