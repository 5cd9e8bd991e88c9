"""A summary of messages, written by the chat's own model as a sequence beside all others."""

import asyncio
from collections.abc import Sequence
from functools import partial

from app.chat.context.limits import text_tokens
from app.chat.conversation import Conversation, MessageNode
from app.chat.prompt import prompt_messages, submitted
from app.chat.reasoning import Part, Pieces, splitter_for
from app.chat.shared import Services
from app.models.backends.port import Asked, ChatModel, ChatRequest
from engine import EngineError, Event, Finished, FinishReason, RequestError, TextDelta, Thinking

_INSTRUCTION = (
    "Summarise our conversation above so that it can go on without it. Keep facts, names, numbers, "
    "decisions, open questions and what I asked you to do. Write the summary alone."
)
_LONGEST, _SHORTEST, _SHARE = 1024, 64, 8
"""Tokens of a summary: at most this share of what the model reads."""
_SPARE = 32
"""Tokens for what a template writes around all messages."""
_OFF = Thinking("off")


def summary_room(model: ChatModel) -> int:
    """Return the most tokens of a summary."""
    most = model.max_tokens
    return _LONGEST if most is None else max(_SHORTEST, min(_LONGEST, most // _SHARE))


def longest_end(
    path: Sequence[MessageNode], counts: Sequence[int], model: ChatModel
) -> Sequence[MessageNode]:
    """Return the newest of some messages that can be read at once to be summarised; all, as a rule."""
    if model.max_tokens is None:
        return path
    left = model.max_tokens - summary_room(model) - text_tokens(_INSTRUCTION, model) - _SPARE
    begin = len(path)
    while begin > 0 and counts[begin - 1] <= left:
        begin -= 1
        left -= counts[begin]
    return path[begin:]


async def summarise(
    conversation: Conversation, path: Sequence[MessageNode], model: ChatModel, services: Services
) -> str:
    """Write a summary of some messages; raises `EngineError` where none comes."""
    loop = asyncio.get_running_loop()
    asked = await submitted(services.encoders, partial(_submit, conversation, path, model))
    ended: asyncio.Future[Finished] = loop.create_future()
    splitter = splitter_for(asked.prompt.answer_format, asked.prompt.starts_in_reasoning)
    pieces: Pieces = []

    def take(events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, TextDelta):
                pieces.extend(splitter.push(event.text, event.marker))
            elif not ended.done():
                ended.set_result(event)

    def broken(error: Exception) -> None:
        if not ended.done():
            ended.set_exception(error)

    services.pump.attach(asked.generation, take, broken)
    try:
        finished = await ended
    except asyncio.CancelledError:
        asked.generation.cancel()
        raise
    if finished.reason is FinishReason.ERROR:
        raise EngineError(finished.error or "the summary ended with an error")
    text = "".join(text for part, text in [*pieces, *splitter.flush()] if part is Part.ANSWER).strip()
    if not text:
        raise RequestError("The model wrote no summary; leave the oldest turns out without one instead.")
    return text


def _submit(conversation: Conversation, path: Sequence[MessageNode], model: ChatModel) -> Asked:
    messages, kept = prompt_messages(conversation.system_prompt, path, _INSTRUCTION, str(model.path))
    # Some servers refuse what they have no word for.
    off = _OFF if model.local is not None and model.thinking_support.can_switch else Thinking()
    request = ChatRequest(
        *(messages, kept, conversation.sampling, summary_room(model)),
        chosen=conversation.chosen,
        thinking=off,
        priority=conversation.priority,
        label=f"summary of {conversation.title}",
        owner=conversation.id,
    )
    return model.chat(request)
