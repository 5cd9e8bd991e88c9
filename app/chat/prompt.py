"""From the shown messages to what the chat template encodes, and from messages to what is shown."""

import asyncio
from asyncio import Future
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from app.chat.conversation import AnswerStats, Conversation, MessageNode, Role, Status
from app.models.backends.limits import limit_text, remedy_text
from app.models.backends.port import Asked, Beginning, ChatModel
from app.settings.words import duration_text
from app.tools.noted import NotedCall
from engine import Finished, FinishReason

SUMMARY_HEAD = "Summary of the conversation so far:"
NO_RESULT = "(The call was stopped; there is no result.)"
NO_ROOM = "cut off, no room is left in the context"

if TYPE_CHECKING:
    from engine import KeptAnswer, Message


def beginning_of(node: MessageNode, text: str | None, model: str) -> Beginning:
    """Return what goes on with an answer as it stands, or with its thoughts and another text.

    model: that which is asked; ids of another's mean nothing to it.
    """
    ids = tuple(node.token_ids) if node.model == model else ()
    if text is not None:
        return Beginning(ids[: node.reasoning_tokens], text)
    return Beginning(ids, "" if node.token_ids else node.text)


def read_part(path: Sequence[MessageNode], above: str | None = None) -> tuple[str, Sequence[MessageNode]]:
    """Return what is read in place of what stands above, and the messages that are read.

    above: what is read in place of all of them.
    """
    if above is not None:
        return above, ()
    marked = [index for index, node in enumerate(path) if node.above is not None]
    return (path[marked[-1]].above or "", path[marked[-1] :]) if marked else ("", path)


def prompt_messages(
    system: str, path: Sequence[MessageNode], text: str | None, model: str, above: str | None = None
) -> "tuple[list[Message], Mapping[int, KeptAnswer]]":
    """Return the messages to encode and, by index, the answers whose token ids `model` produced.

    above: what is read in place of the whole path. Some templates know one system message alone, so a
    summary stands there.
    """
    from engine import KeptAnswer, Message, ToolCall

    summary, path = read_part(path, above)
    if summary:
        system = f"{system.rstrip()}\n\n{SUMMARY_HEAD}\n{summary}".lstrip()
    messages = [Message("system", system)] if system.strip() else []
    kept: dict[int, KeptAnswer] = {}
    for at, node in enumerate(path):
        if node.role is Role.ASSISTANT and node.model == model and node.token_ids:
            kept[len(messages)] = KeptAnswer(tuple(node.token_ids), node.reasoning_tokens)
        if node.role is Role.TOOL:
            call = node.calls[0].told if node.calls else ToolCall("", "")
            message = Message("tool", node.text or NO_RESULT, tool_call_id=call.id, tool_name=call.name)
        else:
            calls = tuple(call.told for call in _answered_calls(path, at))
            message = Message(str(node.role), node.text, node.reasoning or None, calls)
        messages.append(message)
    if text is not None:
        messages.append(Message("user", text))
    return messages, kept


def _answered_calls(path: Sequence[MessageNode], at: int) -> list[NotedCall]:
    """Return the calls of an answer that have a message with their result: templates want one for each."""
    behind = takewhile(lambda node: node.role is Role.TOOL, islice(path, at + 1, None))
    answered = {call.id for node in behind for call in node.calls}
    return [call for call in path[at].calls if call.id in answered]


async def submitted(encoders: Executor, submit: Callable[[], Asked]) -> Asked:
    """Await what was asked for on another thread; what is stopped meanwhile is cancelled once it is there."""
    running = asyncio.get_running_loop().run_in_executor(encoders, submit)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        running.add_done_callback(_cancel)
        raise


def _cancel(running: Future[Asked]) -> None:
    if not running.cancelled() and running.exception() is None:
        running.result().generation.cancel()


def chat_too_long(conversation: Conversation, model: ChatModel) -> str | None:
    """Say with numbers that a model does not read as much as the chat already holds, or return None.

    The numbers are those of the last answer, which another model's tokenizer may have counted.
    """
    answer, most = conversation.last_answer(), model.max_tokens
    if answer is None or answer.stats is None or most is None:
        return None
    tokens = answer.stats.prompt_tokens + answer.stats.tokens
    if tokens < most:
        return None
    longest = model.context_length or most
    remedy = remedy_text(most, longest, model.local.longest_context if model.local is not None else longest)
    return (
        f"This chat is about {tokens:,} tokens long; {limit_text(model.path, most, longest)}. "
        f"Begin a new chat, fork this one at an earlier message, or {remedy}."
    )


def answer_outcome(
    finished: Finished, max_tokens: int | None, context_length: int | None, settings_key: str
) -> tuple[Status, str | None]:
    """Return how an answer ended and, where that needs saying, what its footer says about it.

    max_tokens: the longest answer that was asked for; context_length: the most tokens that the engine's
    model reads, None for a model elsewhere; settings_key: opens the settings of a chat.
    """
    if finished.reason is FinishReason.ERROR:
        return Status.ERROR, finished.error or "The engine gave no reason."
    if finished.reason is FinishReason.CANCELLED:
        return Status.STOPPED, None
    if finished.reason is not FinishReason.LENGTH:
        return Status.COMPLETE, None
    if max_tokens is not None and finished.completion_tokens >= max_tokens:
        return Status.COMPLETE, f"cut off at this chat's token limit, {settings_key} changes it"
    if context_length is None:
        return Status.COMPLETE, "cut off by the endpoint, at its limit of tokens"
    if finished.prompt_tokens + finished.completion_tokens < context_length:
        return Status.COMPLETE, "cut off, the context memory is full (kv_budget in the settings)"
    return Status.COMPLETE, NO_ROOM


def _what_helps(error: str, again_key: str, model_key: str) -> str:
    """Say what to do after a failure, unless its cause says so itself."""
    if "restart the program" in error:
        return ""
    if "damaged" in error:
        return f" Download it again, or press {model_key} to choose another model."
    return f" Press {again_key} to try again."


def _reading_part(stats: AnswerStats) -> list[str]:
    """Say what was read for an answer, and what of that was known already; nothing where none was."""
    if not stats.cached_tokens:
        return []
    saved = f", {duration_text(stats.saved_ms)} saved" if stats.saved_ms >= 1 else ""
    return [f"read {stats.prompt_tokens:,} tokens, {stats.cached_tokens:,} from the cache{saved}"]


def answer_footer(conversation: Conversation, node: MessageNode, again_key: str, model_key: str) -> str:
    """Return the line under an answer: what it cost, how it ended, which alternative it is.

    again_key: writes an answer again; model_key: chooses another model.
    """
    parts: list[str] = []
    if node.status is Status.ERROR:
        error = (node.error or "").rstrip(".")
        parts.append(f"{error}.{_what_helps(error, again_key, model_key)}")
    elif node.status is Status.STOPPED:
        parts.append("stopped")
    elif node.error:
        parts.append(node.error)
    siblings = conversation.siblings(node.id)
    if len(siblings) > 1:
        at = [sibling.id for sibling in siblings].index(node.id) + 1
        parts.append(f"‹ {at} of {len(siblings)} ›")
    if node.status is not Status.STREAMING and node.stats is not None and node.stats.tokens:
        parts.append(f"{node.stats.tokens:,} tokens")
        if node.stats.tok_s:
            parts.append(f"{node.stats.tok_s:.0f} tok/s")
        if node.stats.ttft_ms is not None:
            parts.append(f"first after {duration_text(node.stats.ttft_ms)}")
        parts += _reading_part(node.stats)
    return " · ".join(parts)
