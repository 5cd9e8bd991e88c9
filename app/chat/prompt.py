"""From the shown messages to what the chat template encodes, and from messages to what is shown."""

import asyncio
from asyncio import Future
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.chat.conversation import AnswerStats, Conversation, MessageNode, Role, Status
from app.models.builtin import model_title
from app.models.port import Counting, GenerationPort, ModelPort
from app.models.recommended import recommended_for
from app.settings.words import duration_text
from engine import (
    Finished,
    FinishReason,
    Priority,
    Prompt,
    Request,
    RequestError,
    SamplingParams,
    Thinking,
)

SUMMARY_HEAD = "Summary of the conversation so far:"
NO_ROOM = "cut off, no room is left in the context"
_ANSWER_ROOM = 64
"""Tokens that a long context must have left for an answer."""

if TYPE_CHECKING:
    from engine import KeptAnswer, Message


@dataclass(frozen=True, slots=True)
class Beginning:
    """How an answer is to begin: the ids of one that there is, then a text of the reader's."""

    ids: tuple[int, ...] = ()
    text: str = ""

    @classmethod
    def of(cls, node: MessageNode, text: str | None, model: str) -> "Beginning":
        """Return what goes on with an answer as it stands, or with its thoughts and another text."""
        ids = tuple(node.token_ids) if node.model == model else ()
        if text is not None:
            return cls(ids[: node.reasoning_tokens], text)
        return cls(ids, "" if node.token_ids else node.text)

    def encoded(self, model: ModelPort, prompt: Prompt) -> tuple[int, ...]:
        """Return all its ids; `RequestError` where the model cannot begin so."""
        if not self.text:
            return self.ids
        if prompt.starts_in_reasoning and not self.ids:
            raise RequestError(
                "This model begins with its thoughts, and there are none of its own here. Open the model "
                "that wrote the answer, or have another answer written."
            )
        if not isinstance(model.tokenizer, Counting):
            raise RequestError("This model cannot go on with a text; have another answer written.")
        return (*self.ids, *model.tokenizer.encode_content(self.text))


NO_BEGINNING = Beginning()


class ContextFullError(RequestError):
    """A chat and its next message are longer than what can be read."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An answer that was asked for."""

    generation: GenerationPort
    prompt: Prompt
    """The question alone, where an answer goes on."""
    thinking: Thinking
    """What of the chat's choice has an effect."""
    lacks: str | None = None
    """Which part of it has none."""


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
    from engine import KeptAnswer, Message

    summary, path = read_part(path, above)
    if summary:
        system = f"{system.rstrip()}\n\n{SUMMARY_HEAD}\n{summary}".lstrip()
    messages = [Message("system", system)] if system.strip() else []
    kept: dict[int, KeptAnswer] = {}
    for node in path:
        if node.role is Role.ASSISTANT and node.model == model and node.token_ids:
            kept[len(messages)] = KeptAnswer(tuple(node.token_ids), node.reasoning_tokens)
        messages.append(Message(str(node.role), node.text, node.reasoning or None))
    if text is not None:
        messages.append(Message("user", text))
    return messages, kept


def prompt_too_long(
    tokens: int, max_tokens: int | None, model: ModelPort, *, in_chat: bool = True
) -> str | None:
    """Say with numbers why a prompt leaves no room for an answer, or return None.

    max_tokens: the longest answer that is allowed, None for no limit; in_chat: whether the prompt is a
    chat's, not a single question.
    """
    most = model.max_tokens
    room = min(_ANSWER_ROOM, max(1, most // 8), max_tokens or _ANSWER_ROOM)
    if tokens + room <= most:
        return None
    left = "" if tokens >= most else f", which leaves room for only {most - tokens}"
    subject = "This chat with your message" if in_chat else "The prompt"
    shorten = "Shorten the message, begin a new chat," if in_chat else "Shorten it"
    return (
        f"{subject} is {tokens:,} tokens long; {_limit(model)}, answer included{left}. "
        f"{shorten} or {_remedy(model)}."
    )


def answer_limit(tokens: int, max_tokens: int | None, model: ModelPort) -> int | None:
    """Return the most tokens to ask for: None, to the context's end, where there is no room for more."""
    return None if max_tokens is None or tokens + max_tokens > model.max_tokens else max_tokens


def submit_prompt(
    model: ModelPort,
    messages: "Sequence[Message]",
    kept: "Mapping[int, KeptAnswer]",
    sampling: SamplingParams,
    max_tokens: int | None,
    *,
    chosen: Collection[str],
    priority: Priority,
    label: str,
    owner: str,
    thinking: Thinking,
    beginning: Beginning = NO_BEGINNING,
) -> Asked:
    """Encode a chat and ask for its next answer; not for the UI's thread, which templates may keep waiting.

    chosen: values of `sampling` that stay whatever the model's makers recommend; owner: the chat's id.
    Raises `ContextFullError` with numbers when the prompt is too long.
    """
    support = model.template.thinking_support
    fitted = support.fitted(thinking)
    prompt = model.template.prompt(messages, kept=kept, thinking=fitted)
    answered = beginning.encoded(model, prompt)
    ids = (*prompt.ids, *answered)
    if problem := prompt_too_long(len(ids), max_tokens, model):
        raise ContextFullError(problem)
    most = answer_limit(len(ids), max_tokens, model)
    sampling = recommended_for(model.path).applied(sampling, chosen)
    request = Request(
        *(ids, sampling),
        max_tokens=most,
        priority=priority,
        label=label,
        owner=owner,
        answered=len(answered),
    )
    return Asked(model.submit(request), prompt, fitted, support.lacks(thinking))


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


def chat_too_long(conversation: Conversation, model: ModelPort) -> str | None:
    """Say with numbers that a model does not read as much as the chat already holds, or return None.

    The numbers are those of the last answer, which another model's tokenizer may have counted.
    """
    answer = conversation.last_answer()
    if answer is None or answer.stats is None:
        return None
    tokens = answer.stats.prompt_tokens + answer.stats.tokens
    if tokens < model.max_tokens:
        return None
    return (
        f"This chat is about {tokens:,} tokens long; {_limit(model)}. "
        f"Begin a new chat, fork this one at an earlier message, or {_remedy(model)}."
    )


def _limit(model: ModelPort) -> str:
    title = model_title(model.path)
    if model.max_tokens < model.context_length:
        return f"the context memory holds at most {model.max_tokens:,} of {title}"
    return f"{title} reads at most {model.context_length:,}"


def _remedy(model: ModelPort) -> str:
    if model.max_tokens < model.context_length:
        return "give more memory with kv_budget in the settings"
    return "choose a model with a longer context"


def answer_outcome(
    finished: Finished, max_tokens: int | None, context_length: int, settings_key: str
) -> tuple[Status, str | None]:
    """Return how an answer ended and, where that needs saying, what its footer says about it.

    max_tokens: the longest answer that was asked for; context_length: the most tokens the model reads;
    settings_key: opens the settings of a chat.
    """
    if finished.reason is FinishReason.ERROR:
        return Status.ERROR, finished.error or "The engine gave no reason."
    if finished.reason is FinishReason.CANCELLED:
        return Status.STOPPED, None
    if finished.reason is not FinishReason.LENGTH:
        return Status.COMPLETE, None
    if max_tokens is not None and finished.completion_tokens >= max_tokens:
        return Status.COMPLETE, f"cut off at this chat's token limit, {settings_key} changes it"
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
