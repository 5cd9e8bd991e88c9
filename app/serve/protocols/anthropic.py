"""`/v1/messages` and `/v1/messages/count_tokens`: Anthropic's protocol."""

import json
from collections.abc import AsyncIterator
from typing import Any

from app.serve.http.errors import anthropic_error
from app.serve.http.fields import Fields
from app.serve.http.streams import event
from app.serve.protocols.anthropic_messages import (
    call_input,
    read_anthropic_tools,
    read_conversation,
    tool_use,
)
from app.serve.protocols.formats import held_answer, read_anthropic_choice, read_format
from app.serve.protocols.shared import check_tools, failure, new_id
from app.serve.protocols.thinking import read_budget
from app.serve.requests.answer import Ended, Ending, Piece, Said, Thought
from app.serve.requests.answers import Answers, Whole
from app.serve.requests.desk import Asked, Chat, Desk
from app.serve.requests.held import Held
from app.serve.requests.sampling import read_sampling
from engine import ToolCall

_STOPS = {
    Ending.STOP: "end_turn",
    Ending.STOP_STRING: "stop_sequence",
    Ending.LENGTH: "max_tokens",
    Ending.TOOL_CALLS: "tool_use",
}


class AnthropicMessages:
    """One request of this protocol."""

    def __init__(self, fields: Fields, desk: Desk, *, count_only: bool = False) -> None:
        """Raises `ApiError` for a request that cannot be served. count_only: nothing is to be answered."""
        _refuse(fields)
        if not count_only and not fields.has("max_tokens"):
            raise fields.refuse("max_tokens", "is missing")
        served = desk.models.of(fields)
        messages, tools = read_conversation(fields), read_anthropic_tools(fields)
        choice = fields.inner("tool_choice")
        one_call = choice is not None and choice.flag("disable_parallel_tool_use") is True
        if choice is not None:
            tools = () if choice.get("type") == "none" else tools
        check_tools(served, tools, messages)
        held = held_answer(_format(fields), read_anthropic_choice(fields, tools), tools)
        chat = Chat(messages, tools, one_call, read_budget(fields, served))
        sampling = read_sampling(fields, served.usual, ("max_tokens",), stop="stop_sequences")
        self.asked = Asked("messages", served, sampling, chat, held=None if count_only else held)
        self.stream = bool(fields.flag("stream"))
        self._head = {"id": new_id("msg_"), "type": "message", "role": "assistant", "model": served.id}

    def body(self, _answers: Answers, found: list[Whole]) -> dict[str, Any]:
        """The whole answer; raises `ApiError` where it failed."""
        (whole,) = found
        if whole.ended.ending is Ending.FAILED:
            raise failure(whole.ended, self.asked.served)
        content: list[dict[str, Any]] = []
        if whole.thought:
            content.append({"type": "thinking", "thinking": whole.thought, "signature": ""})
        if whole.text:
            content.append({"type": "text", "text": whole.text})
        content += [tool_use(call) for call in whole.calls]
        return {**self._head, "content": content, **_stop(whole.ended), "usage": _usage(whole.ended)}

    async def events(self, answers: Answers) -> AsyncIterator[bytes]:
        """The answer piece by piece."""
        nothing = {"stop_reason": None, "stop_sequence": None}
        used = {"input_tokens": answers.prompt_tokens, "output_tokens": 0}
        yield _event("message_start", message={**self._head, "content": [], **nothing, "usage": used})
        blocks = _Blocks()
        async for _, pieces in answers:
            for piece in pieces:
                if isinstance(piece, Ended) and piece.ending is Ending.FAILED:
                    yield event(anthropic_error(failure(piece, self.asked.served)), "error")
                    return
                for data in blocks.close() if isinstance(piece, Ended) else blocks.piece(piece):
                    yield data
                if isinstance(piece, Ended):
                    yield _event("message_delta", delta=_stop(piece), usage=_usage(piece))
        yield _event("message_stop")


class _Blocks:
    """Opens, fills and closes the blocks of a streamed message."""

    def __init__(self) -> None:
        self._index = -1
        self._open: type | None = None

    def piece(self, piece: Piece) -> list[bytes]:
        """The events of one piece."""
        if isinstance(piece, ToolCall):
            start = self._start(piece, {**tool_use(piece), "input": {}})
            arguments = json.dumps(call_input(piece), ensure_ascii=False)
            delta = {"type": "input_json_delta", "partial_json": arguments}
            return [*start, self._delta(delta), *self.close()]
        if isinstance(piece, Thought):
            start = self._start(piece, {"type": "thinking", "thinking": "", "signature": ""})
            return [*start, self._delta({"type": "thinking_delta", "thinking": piece.text})]
        assert isinstance(piece, Said)
        start = self._start(piece, {"type": "text", "text": ""})
        return [*start, self._delta({"type": "text_delta", "text": piece.text})]

    def close(self) -> list[bytes]:
        """End the block that is open."""
        if self._open is None:
            return []
        self._open = None
        return [_event("content_block_stop", index=self._index)]

    def _start(self, piece: Piece, block: dict[str, Any]) -> list[bytes]:
        if self._open is type(piece):
            return []
        closed = self.close()
        self._index += 1
        self._open = type(piece)
        return [*closed, _event("content_block_start", index=self._index, content_block=block)]

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)


def _event(name: str, **fields: Any) -> bytes:
    return event({"type": name, **fields}, name)


def _refuse(fields: Fields) -> None:
    for name in ("container", "mcp_servers"):
        fields.only(name, [], why="is not served here; leave it out")
    fields.only("n", 1, why="only one answer is served")


def _format(fields: Fields) -> Held | None:
    output = fields.inner("output_config")
    own = output.inner("format") if output is not None else None
    return read_format(own or fields.inner("output_format"))


def _stop(ended: Ended) -> dict[str, Any]:
    return {"stop_reason": _STOPS[ended.ending], "stop_sequence": ended.stop_string}


def _usage(ended: Ended) -> dict[str, Any]:
    return {
        "input_tokens": ended.prompt_tokens - ended.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": ended.cached_tokens,
        "output_tokens": ended.completion_tokens,
    }
