"""`/v1/responses`: OpenAI's responses. None is kept: each request brings its whole conversation."""

import time
from collections.abc import AsyncIterator
from typing import Any

from app.serve.http.fields import Fields
from app.serve.protocols.formats import held_answer, read_choice, read_format
from app.serve.protocols.logprobs import chat_logprobs, read_response_logprobs
from app.serve.protocols.response_events import ResponseEvents, message_item, reasoning_item, tool_item
from app.serve.protocols.response_items import read_input, read_response_tools
from app.serve.protocols.shared import check_tools, failure, new_id, refuse_unserved
from app.serve.protocols.thinking import read_reasoning
from app.serve.requests.answer import Ended, Ending, Said, Scores, Thought
from app.serve.requests.answers import Answers, Whole
from app.serve.requests.desk import Asked, Chat, Desk
from app.serve.requests.sampling import read_sampling
from engine import ToolCall

_NOT_KEPT = "no response is kept here; send the whole conversation in input"


class Responses:
    """One request of this protocol."""

    def __init__(self, fields: Fields, desk: Desk) -> None:
        """Raises `ApiError` for a request that cannot be served."""
        _refuse(fields)
        served = desk.models.of(fields)
        messages, tools = read_input(fields), read_response_tools(fields)
        if fields.get("tool_choice") == "none":
            tools = ()
        check_tools(served, tools, messages)
        text = fields.inner("text")
        wanted = text.inner("format") if text is not None else None
        held = held_answer(read_format(wanted), read_choice(fields, tools), tools)
        one_call = fields.flag("parallel_tool_calls") is False
        chat = Chat(messages, tools, one_call, read_reasoning(fields, served))
        self._top = read_response_logprobs(fields)
        sampling = read_sampling(fields, served.usual, ("max_output_tokens",), top_logprobs=self._top)
        self.asked = Asked("responses", served, sampling, chat, held=held)
        self._tokenizer = served.model.tokenizer
        self.stream = bool(fields.flag("stream"))
        self._shown = {
            "id": new_id("resp_"),
            "object": "response",
            "created_at": int(time.time()),
            "model": served.id,
            "instructions": fields.get("instructions"),
            "max_output_tokens": sampling.max_tokens,
            "metadata": fields.get("metadata") or {},
            "parallel_tool_calls": not one_call,
            "previous_response_id": None,
            "reasoning": {"effort": (fields.get("reasoning") or {}).get("effort"), "summary": None},
            "store": False,
            "temperature": sampling.params.temperature,
            "text": {"format": {"type": "text"} if wanted is None else wanted.values},
            "tool_choice": fields.get("tool_choice") or "auto",
            "tools": fields.get("tools") or [],
            "top_logprobs": self._top or 0,
            "top_p": sampling.params.top_p,
            "truncation": "disabled",
        }

    def body(self, _answers: Answers, found: list[Whole]) -> dict[str, Any]:
        """The whole answer; raises `ApiError` where it failed."""
        (whole,) = found
        if whole.ended.ending is Ending.FAILED:
            raise failure(whole.ended, self.asked.served)
        output = [reasoning_item(new_id("rs_"), whole.thought)] if whole.thought else []
        if whole.text or not whole.calls:
            output.append(message_item(new_id("msg_"), whole.text, self._logprobs(whole.scores)))
        output += [tool_item(new_id("fc_"), call) for call in whole.calls]
        return self._response(output, whole.ended)

    async def events(self, answers: Answers) -> AsyncIterator[bytes]:
        """The answer piece by piece."""
        out = ResponseEvents()
        yield out.named("response.created", response=self._response([], None))
        yield out.named("response.in_progress", response=self._response([], None))
        async for _, pieces in answers:
            for piece in pieces:
                if isinstance(piece, Ended):
                    for data in out.close(empty_message=True):
                        yield data
                    yield self._last(out, piece)
                else:
                    for data in self._piece_events(out, piece):
                        yield data

    def _piece_events(self, out: ResponseEvents, piece: Thought | Said | ToolCall) -> list[bytes]:
        if isinstance(piece, Thought):
            return out.thought(piece.text)
        if isinstance(piece, Said):
            return out.text(piece.text, self._logprobs(piece.scores))
        return out.call(piece)

    def _logprobs(self, scores: Scores) -> list[dict[str, Any]]:
        told = chat_logprobs(scores, self._tokenizer)
        return [] if told is None else told["content"]

    def _last(self, out: ResponseEvents, ended: Ended) -> bytes:
        response = self._response(out.items, ended)
        return out.named(f"response.{response['status']}", response=response)

    def _response(self, output: list[dict[str, Any]], ended: Ended | None) -> dict[str, Any]:
        """The response as it stands; `ended` None: it goes on."""
        status, reason, error, used = "in_progress", None, None, None
        if ended is not None:
            status = {Ending.LENGTH: "incomplete", Ending.FAILED: "failed"}.get(ended.ending, "completed")
            reason = {"reason": "max_output_tokens"} if ended.ending is Ending.LENGTH else None
            used = _usage(ended)
            if ended.ending is Ending.FAILED:
                message = failure(ended, self.asked.served).message
                error = {"code": "server_error", "message": message}
        shown = {"status": status, "error": error, "incomplete_details": reason, "usage": used}
        return {**self._shown, **shown, "output": output}


def _refuse(fields: Fields) -> None:
    refuse_unserved(fields)
    for name in ("previous_response_id", "conversation", "prompt"):
        fields.only(name, why=_NOT_KEPT)
    fields.only("background", False, why="no response is kept here")
    fields.only("truncation", "disabled", why="only disabled is served")
    fields.only("n", 1, why="only one answer is served")


def _usage(ended: Ended) -> dict[str, Any]:
    return {
        "input_tokens": ended.prompt_tokens,
        "input_tokens_details": {"cached_tokens": ended.cached_tokens},
        "output_tokens": ended.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": ended.reasoning_tokens},
        "total_tokens": ended.prompt_tokens + ended.completion_tokens,
    }
