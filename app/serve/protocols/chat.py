"""`/v1/chat/completions`: OpenAI's chats."""

import time
from collections.abc import AsyncIterator
from typing import Any

from app.serve.http.errors import openai_error
from app.serve.http.fields import Fields
from app.serve.http.streams import DONE, TextEvents, event
from app.serve.protocols.chat_messages import read_messages
from app.serve.protocols.formats import held_answer, read_choice, read_held
from app.serve.protocols.logprobs import chat_logprobs, read_chat_logprobs
from app.serve.protocols.shared import (
    check_tools,
    failure,
    finish_reason,
    new_id,
    read_tools,
    refuse_unserved,
    usage_of,
)
from app.serve.protocols.thinking import read_thinking
from app.serve.requests.answer import Ended, Ending, Said, Scores, Thought
from app.serve.requests.answers import Answers, Whole
from app.serve.requests.desk import Asked, Chat, Desk
from app.serve.requests.sampling import read_sampling
from app.tools.calls import arguments_text
from engine import ToolCall

_LIMITS = ("max_completion_tokens", "max_tokens")


class ChatCompletions:
    """One request of this protocol."""

    def __init__(self, fields: Fields, desk: Desk) -> None:
        """Raises `ApiError` for a request that cannot be served."""
        refuse_unserved(fields)
        served = desk.models.of(fields)
        messages, tools = read_messages(fields), read_tools(fields.objects("tools"))
        if fields.get("tool_choice") == "none":
            tools = ()
        check_tools(served, tools, messages)
        held = held_answer(read_held(fields), read_choice(fields, tools), tools)
        one_call = fields.flag("parallel_tool_calls") is False
        chat = Chat(messages, tools, one_call, read_thinking(fields, served))
        sampling = read_sampling(fields, served.usual, _LIMITS, top_logprobs=read_chat_logprobs(fields))
        self.asked = Asked("chat", served, sampling, chat, held=held)
        self._tokenizer = served.model.tokenizer
        self.stream = bool(fields.flag("stream"))
        options = fields.inner("stream_options")
        self._usage = options is not None and bool(options.flag("include_usage"))
        self._texts: dict[tuple[int, str], TextEvents] = {}
        self._head = {"id": new_id("chatcmpl-"), "created": int(time.time()), "model": served.id}

    def body(self, answers: Answers, found: list[Whole]) -> dict[str, Any]:
        """The whole answer; raises `ApiError` where one failed."""
        choices = [self._choice(index, whole) for index, whole in enumerate(found)]
        usage = usage_of(answers.prompt_tokens, [whole.ended for whole in found])
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": usage}

    async def events(self, answers: Answers) -> AsyncIterator[bytes]:
        """The answer piece by piece."""
        ended: list[Ended] = []
        calls = [0] * answers.count
        for index in range(answers.count):
            yield self._chunk(index, {"role": "assistant", "content": ""})
        async for index, pieces in answers:
            for piece in pieces:
                if isinstance(piece, Ended):
                    ended.append(piece)
                    if piece.ending is Ending.FAILED:
                        yield event(openai_error(failure(piece, self.asked.served)))
                        return
                    yield self._chunk(index, {}, finish_reason(piece.ending))
                elif isinstance(piece, ToolCall):
                    yield self._chunk(index, _call_delta(piece, calls[index]))
                    calls[index] += 1
                else:
                    yield self._text(index, piece)
        if self._usage:
            usage = usage_of(answers.prompt_tokens, ended)
            yield event({**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        yield DONE

    def _choice(self, index: int, whole: Whole) -> dict[str, Any]:
        if whole.ended.ending is Ending.FAILED:
            raise failure(whole.ended, self.asked.served)
        message: dict[str, Any] = {"role": "assistant", "content": whole.text}
        if whole.thought:
            message["reasoning_content"] = whole.thought
        if whole.calls:
            message["content"] = whole.text or None
            message["tool_calls"] = [call_object(call) for call in whole.calls]
        reason = finish_reason(whole.ended.ending)
        told = chat_logprobs(whole.scores, self._tokenizer)
        return {"index": index, "message": message, "logprobs": told, "finish_reason": reason}

    def _chunk(
        self, index: int, delta: dict[str, Any], reason: str | None = None, scores: Scores = ()
    ) -> bytes:
        told = chat_logprobs(scores, self._tokenizer)
        choice = {"index": index, "delta": delta, "logprobs": told, "finish_reason": reason}
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
        return event({**chunk, "usage": None} if self._usage else chunk)

    def _text(self, index: int, piece: Thought | Said) -> bytes:
        name = "reasoning_content" if isinstance(piece, Thought) else "content"
        if isinstance(piece, Said) and piece.scores:
            return self._chunk(index, {name: piece.text}, scores=piece.scores)
        events = self._texts.get((index, name))
        if events is None:
            events = TextEvents(lambda text: self._chunk(index, {name: text}))
            self._texts[index, name] = events
        return events.of(piece.text)


def call_object(call: ToolCall) -> dict[str, Any]:
    """A call as OpenAI's chats write it."""
    function = {"name": call.name, "arguments": arguments_text(call)}
    return {"id": call.id, "type": "function", "function": function}


def _call_delta(call: ToolCall, index: int) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, **call_object(call)}]}
