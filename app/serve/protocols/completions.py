"""`/v1/completions`: OpenAI's texts that go on, without a chat template."""

import time
from collections.abc import AsyncIterator
from typing import Any

from app.serve.http.errors import openai_error
from app.serve.http.fields import Fields
from app.serve.http.streams import DONE, TextEvents, event
from app.serve.protocols.formats import read_held
from app.serve.protocols.logprobs import completion_logprobs, read_completion_logprobs
from app.serve.protocols.shared import failure, finish_reason, new_id, refuse_unserved, usage_of
from app.serve.requests.answer import Ended, Ending, Said
from app.serve.requests.answers import Answers, Whole
from app.serve.requests.desk import Asked, Desk
from app.serve.requests.sampling import read_sampling

Text = str | tuple[int, ...]


class Completions:
    """One request of this protocol."""

    def __init__(self, fields: Fields, desk: Desk) -> None:
        """Raises `ApiError` for a request that cannot be served."""
        refuse_unserved(fields)
        served = desk.models.of(fields)
        top = read_completion_logprobs(fields)
        sampling = read_sampling(fields, served.usual, ("max_tokens",), top_logprobs=top)
        texts = _prompts(fields, served.model.tokenizer.vocab_size)
        self.asked = Asked("completion", served, sampling, texts=texts, held=read_held(fields))
        self._tokenizer = served.model.tokenizer
        self.stream = bool(fields.flag("stream"))
        options = fields.inner("stream_options")
        self._usage = options is not None and bool(options.flag("include_usage"))
        self._texts: dict[int, TextEvents] = {}
        self._head = {
            "id": new_id("cmpl-"),
            "object": "text_completion",
            "created": int(time.time()),
            "model": served.id,
        }

    def body(self, answers: Answers, found: list[Whole]) -> dict[str, Any]:
        """The whole answer; raises `ApiError` where one failed."""
        for whole in found:
            if whole.ended.ending is Ending.FAILED:
                raise failure(whole.ended, self.asked.served)
        choices = [
            _choice(
                index,
                whole.text,
                finish_reason(whole.ended.ending),
                completion_logprobs(whole.scores, self._tokenizer, 0),
            )
            for index, whole in enumerate(found)
        ]
        usage = usage_of(answers.prompt_tokens, [whole.ended for whole in found])
        return {**self._head, "choices": choices, "usage": usage}

    async def events(self, answers: Answers) -> AsyncIterator[bytes]:
        """The answer piece by piece."""
        ended: list[Ended] = []
        letters = [0] * answers.count
        async for index, pieces in answers:
            for piece in pieces:
                if isinstance(piece, Said):
                    yield self._said(index, piece, letters[index])
                    letters[index] += len(piece.text)
                elif isinstance(piece, Ended):
                    ended.append(piece)
                    if piece.ending is Ending.FAILED:
                        yield event(openai_error(failure(piece, self.asked.served)))
                        return
                    yield self._chunk(_choice(index, "", finish_reason(piece.ending)))
        if self._usage:
            usage = usage_of(answers.prompt_tokens, ended)
            yield event({**self._head, "choices": [], "usage": usage})
        yield DONE

    def _said(self, index: int, piece: Said, offset: int) -> bytes:
        if piece.scores:
            told = completion_logprobs(piece.scores, self._tokenizer, offset)
            return self._chunk(_choice(index, piece.text, None, told))
        events = self._texts.get(index)
        if events is None:
            events = TextEvents(lambda text: self._chunk(_choice(index, text, None)))
            self._texts[index] = events
        return events.of(piece.text)

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        chunk = {**self._head, "choices": [choice]}
        return event({**chunk, "usage": None} if self._usage else chunk)


def _choice(
    index: int, text: str, reason: str | None, logprobs: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def _prompts(fields: Fields, vocab_size: int) -> tuple[Text, ...]:
    """One text or several, each as a string or as token ids."""
    value = fields.get("prompt")
    if isinstance(value, str):
        return (value,)
    several = fields.many("prompt")
    if not several:
        raise fields.refuse("prompt", "is missing or empty")
    if all(isinstance(one, int) for one in several):
        several = [several]
    return tuple(_text(fields, one, vocab_size) for one in several)


def _text(fields: Fields, value: Any, vocab_size: int) -> Text:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise fields.refuse("prompt", "must be text, token ids, or a list of either")
    for one in value:
        if not isinstance(one, int) or isinstance(one, bool) or not 0 <= one < vocab_size:
            raise fields.refuse("prompt", f"token ids are whole numbers from 0 to {vocab_size - 1}")
    return tuple(value)
