"""How much of a context is taken, and from which message on a chat is still read."""

from collections.abc import Sequence

from app.chat.conversation import MessageNode, Role
from app.models.backends.port import ChatModel

NEARLY_FULL = 0.8
"""Share of the context from which on the reader is warned."""
_AROUND = 4
"""Tokens that a template puts around a message."""
_BYTES_PER_TOKEN = 3


def token_counts(path: Sequence[MessageNode], model: ChatModel) -> list[int]:
    """About how many tokens each message is; not for the UI's thread."""
    return [_count(node, model) + _AROUND for node in path]


def text_tokens(text: str, model: ChatModel) -> int:
    """About how many tokens a text is; not for the UI's thread."""
    if model.counter is not None:
        return len(model.counter.encode_content(text))
    return len(text.encode("utf-8", "replace")) // _BYTES_PER_TOKEN


def _count(node: MessageNode, model: ChatModel) -> int:
    if node.token_ids and node.model == str(model.path):
        return len(node.token_ids)
    return text_tokens(node.text, model)


def first_read(path: Sequence[MessageNode], counts: Sequence[int], room: int, *, keeps_last: bool) -> int:
    """Return the index of the person's message from which on everything takes at most `room` tokens.

    keeps_last: whether the last of them is read in any case; else all may be left out.
    """
    asked = [index for index, node in enumerate(path) if node.role is Role.USER]
    found = asked[-1] if keeps_last and asked else len(path)
    taken = 0
    for index in reversed(range(len(path))):
        taken += counts[index]
        if taken > room:
            break
        if path[index].role is Role.USER:
            found = index
    return found
