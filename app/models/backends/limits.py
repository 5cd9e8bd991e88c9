"""What a model reads of a chat, and what is said where that is too little."""

from pathlib import Path

from app.models.builtin import model_title
from app.models.port import ModelPort

_ANSWER_ROOM = 64
"""Tokens that a long context must have left for an answer."""


def leaves_room(tokens: int, max_tokens: int | None, most: int) -> bool:
    """Tell whether a prompt of so many tokens leaves room for an answer.

    max_tokens: the longest answer that is allowed, None for no limit; most: what is read, the answer
    included.
    """
    return tokens + min(_ANSWER_ROOM, max(1, most // 8), max_tokens or _ANSWER_ROOM) <= most


def prompt_too_long(
    tokens: int, max_tokens: int | None, model: ModelPort, *, in_chat: bool = True
) -> str | None:
    """Say with numbers why a prompt leaves no room for an answer, or return None.

    max_tokens: the longest answer that is allowed, None for no limit; in_chat: whether the prompt is a
    chat's, not a single question.
    """
    most, longest = model.max_tokens, model.context_length
    if leaves_room(tokens, max_tokens, most):
        return None
    left = "" if tokens >= most else f", which leaves room for only {most - tokens}"
    subject = "This chat with your message" if in_chat else "The prompt"
    shorten = "Shorten the message, begin a new chat," if in_chat else "Shorten it"
    return (
        f"{subject} is {tokens:,} tokens long; {limit_text(model.path, most, longest)}, answer "
        f"included{left}. "
        f"{shorten} or {remedy_text(most, longest, model.longest_context)}."
    )


def answer_limit(tokens: int, max_tokens: int | None, model: ModelPort) -> int | None:
    """Return the most tokens to ask for: None, to the context's end, where there is no room for more."""
    return None if max_tokens is None or tokens + max_tokens > model.max_tokens else max_tokens


def limit_text(path: Path, most: int, context_length: int) -> str:
    """Say how much is read of a chat with a model that could read `context_length` tokens."""
    title = model_title(path)
    if most < context_length:
        return f"the context memory holds at most {most:,} of {title}"
    return f"{title} reads at most {context_length:,}"


def remedy_text(most: int, context_length: int, longest: int) -> str:
    """Say what would have more read; longest: what could be chosen of the model's context."""
    if most < context_length:
        return "give more memory with kv_budget in the settings"
    if context_length < longest:
        return "choose more of the model's context with /context"
    return "choose a model with a longer context"
