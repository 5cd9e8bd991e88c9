"""Takes requests to their models: so many at once and no more, each a sequence of the one engine."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.models.outside import outside_label
from app.serve.http.errors import ApiError
from app.serve.log_row import RefusedRow, Row
from app.serve.metrics import Metrics
from app.serve.requests.answer import AnswerReader
from app.serve.requests.answers import Answers, Stream
from app.serve.requests.port import BY_ITSELF, SequencePort
from app.serve.requests.sampling import Sampling
from app.serve.requests.served import Served, ServedModels
from app.serve.requests.wakeups import Wakeups
from engine import EngineClosedError, Message, Prompt, Request, RequestError, TemplateError, Thinking

MOST_REQUESTS = 256
"""Sequences of requests that run or wait."""
_RETRY_SECONDS = 1


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, for its next answer."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    """In OpenAI's form."""
    one_call: bool = False
    thinking: Thinking = BY_ITSELF


@dataclass(frozen=True, slots=True)
class Asked:
    """A request in the engine's words."""

    kind: str
    """What log rows call it."""
    served: Served
    sampling: Sampling
    chat: Chat | None = None
    texts: tuple[str | tuple[int, ...], ...] = ()
    """Without a chat: texts, or token ids, to go on with."""
    arrived: float = field(default_factory=time.perf_counter)


class Desk:
    """Counts requests, encodes and submits them."""

    def __init__(
        self,
        models: ServedModels,
        metrics: Metrics,
        log: Callable[[Row], None],
        most_requests: int = MOST_REQUESTS,
    ) -> None:
        self.models, self.metrics = models, metrics
        self._log, self._most = log, most_requests
        self._wakeups: Wakeups | None = None
        self.taken = 0
        """Sequences of requests that are not answered yet."""

    async def answers(self, asked: Asked) -> Answers:
        """Submit a request; raises `ApiError` for one that cannot be served, or not now.

        Whoever gets the answers closes them.
        """
        count = asked.sampling.choices * (1 if asked.chat is not None else len(asked.texts))
        self._take(count)
        try:
            prompts = await asyncio.to_thread(encoded, asked)
            streams = self._submitted(asked, prompts)
        except BaseException:
            self._give_back(count)
            raise
        loop = asyncio.get_running_loop()
        if self._wakeups is None or self._wakeups.loop is not loop:
            self._wakeups = Wakeups(loop)
        return Answers(
            asked.kind,
            asked.served.id,
            asked.arrived,
            streams,
            asked.sampling.choices,
            self._wakeups,
            self.metrics,
            self._closed,
        )

    def refused(self, path: str, status: int, message: str) -> None:
        """Tell of a request that was not answered."""
        self.metrics.refused(status)
        self._log(RefusedRow(path[:100], status, message))

    def _closed(self, row: Row, count: int) -> None:
        self._give_back(count)
        self._log(row)

    def _take(self, count: int) -> None:
        if count > self._most:
            raise ApiError(f"n: {count} answers at once are more than the {self._most} of this server")
        if self.taken + count > self._most:
            raise ApiError(
                f"{self.taken} requests run or wait already; try again later",
                429,
                code="too_many_requests",
                headers={"retry-after": str(_RETRY_SECONDS)},
            )
        self.taken += count

    def _give_back(self, count: int) -> None:
        self.taken -= count

    def _submitted(self, asked: Asked, prompts: Sequence[Prompt | tuple[int, ...]]) -> list[Stream]:
        """Every choice of every prompt; none is left behind where one is refused."""
        streams: list[Stream] = []
        try:
            for prompt in prompts:
                for _ in range(asked.sampling.choices):
                    streams.append(Stream(submit(asked, prompt, len(streams)), reader_of(asked, prompt)))
        except BaseException:
            for stream in streams:
                stream.generation.cancel()
            raise
        return streams


def encoded(asked: Asked) -> list[Prompt | tuple[int, ...]]:
    """What the model reads; not for the event loop's thread. Raises `ApiError`."""
    model, chat = asked.served.model, asked.chat
    if chat is None:
        return [_text_ids(asked, text) for text in asked.texts]
    if not chat.messages:
        raise ApiError("messages: there is none", field="messages")
    tools = chat.tools or None
    try:
        prompt = model.template.prompt(chat.messages, thinking=chat.thinking, tools=tools, strict=True)
    except TemplateError as error:
        cause = asked.served.without_paths(str(error))
        raise ApiError(f"messages: the model's chat template refuses them: {cause}") from error
    return [prompt]


def _text_ids(asked: Asked, text: str | tuple[int, ...]) -> tuple[int, ...]:
    tokenizer = asked.served.model.tokenizer
    if not isinstance(text, str):
        return text
    ids = tokenizer.encode(text, special=True)
    bos = tokenizer.bos_id
    if tokenizer.add_bos and bos is not None and ids[:1] != [bos]:
        ids = [bos, *ids]
    return tuple(ids)


def submit(asked: Asked, prompt: Prompt | tuple[int, ...], index: int) -> SequencePort:
    """Start one choice; raises `ApiError`."""
    ids = tuple(prompt.ids) if isinstance(prompt, Prompt) else prompt
    model, sampling = asked.served.model, asked.sampling
    room = model.max_tokens - len(ids)
    if room < 1:
        raise ApiError(
            f"the prompt is {len(ids):,} tokens long; {asked.served.id} reads at most "
            f"{model.max_tokens:,} here, the answer included",
            code="context_length_exceeded",
        )
    limit = sampling.max_tokens or asked.served.max_tokens
    try:
        return model.submit(
            Request(
                ids,
                sampling=sampling.of_choice(index),
                max_tokens=None if limit is None or limit > room else limit,
                stop=sampling.stop,
                ignore_eog=sampling.ignore_eog,
                label=outside_label(asked.kind),
            )
        )
    except RequestError as error:
        raise ApiError(asked.served.without_paths(str(error))) from error
    except EngineClosedError as error:
        raise ApiError(asked.served.without_paths(str(error)), 503) from error


def reader_of(asked: Asked, prompt: Prompt | tuple[int, ...]) -> AnswerReader:
    """What reads one choice's events."""
    if asked.chat is None or not isinstance(prompt, Prompt):
        return AnswerReader(None, None, {})
    chat = asked.chat
    functions = [tool["function"] for tool in chat.tools]
    tools = {function["name"]: function.get("parameters") or {} for function in functions}
    row = asked.served.model.template.tool_format if tools else None
    return AnswerReader(prompt, row, tools, one_call=chat.one_call)
