"""What a message that is being written will cost: its tokens, their KV, how long they are read, if they fit.

Counting is for another thread than the UI's. What was counted is remembered piece by piece, so that a key
pressed in a megabyte counts a few lines.
"""

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import median

from app.chat.context.limits import NEARLY_FULL
from app.chat.conversation import AnswerStats, MessageNode
from app.chat.draft import Draft
from app.chat.session import ChatSession
from app.models.backends.limits import leaves_room
from app.models.port import Counting
from app.settings.words import size_text, wait_text
from engine import EngineStats, ModelStats

LEAST_TOKENS = 500
"""Of a shorter message nothing is said."""
_PIECE = 4096
_CUT = 8
"""A piece ends behind a line whose length is a multiple of this: pieces behind a change stay as they were."""
_LAST = 5
_LEAST_READ = 32
"""Prompts of fewer new tokens say nothing of a speed."""


class TokenCounter:
    """Counts the tokens of drafts for one tokenizer."""

    def __init__(self, tokenizer: Counting) -> None:
        self.tokenizer = tokenizer
        self._known: dict[str, int] = {}

    def count(self, draft: Draft, stop: threading.Event) -> int | None:
        """About how many tokens a draft is; None where it was stopped."""
        known: dict[str, int] = {}
        total = 0
        for piece in pieces_of(draft.expanded):
            if stop.is_set():
                return None
            found = known.get(piece, self._known.get(piece))
            known[piece] = len(self.tokenizer.encode_content(piece)) if found is None else found
            total += known[piece]
        self._known = known
        return total


def pieces_of(text: str) -> Iterator[str]:
    """Cut a text where its own lines say, and long lines in pieces."""
    start = at = 0
    for line in text.splitlines(keepends=True):
        at += len(line)
        while at - start > 2 * _PIECE:
            yield text[start : start + _PIECE]
            start += _PIECE
        if len(line) % _CUT == 0 or at - start >= _PIECE:
            yield text[start:at]
            start = at
    if start < at:
        yield text[start:at]


@dataclass(frozen=True, slots=True)
class MessageCost:
    """What is known of a message. None: not known."""

    tokens: int
    kv_bytes: int | None = None
    seconds: float | None = None
    share: float | None = None
    """Of the context, what stands in it and the message together."""
    room: int | None = None
    """Tokens that the context has left, where the message is longer."""

    @property
    def warns(self) -> bool:
        """Whether the context is nearly full with it, or too short for it."""
        return self.room is not None or (self.share or 0.0) >= NEARLY_FULL

    @property
    def words(self) -> str:
        """Such as `3,200 tokens · 96 MB KV · reads in about 4 s`; "" for a short message that fits."""
        if self.room is not None:
            return f"{self.tokens:,} tokens, room for {self.room:,}: it will come back unsent"
        if self.tokens < LEAST_TOKENS:
            return ""
        parts = [f"{self.tokens:,} tokens"]
        if self.kv_bytes:
            parts.append(f"{size_text(self.kv_bytes)} KV")
        if reading := wait_text(self.seconds):
            parts.append(f"reads in {reading}")
        if self.warns:
            parts.append(f"fills {self.share:.0%} of the context")
        return " · ".join(parts)


def cost_of(
    tokens: int, session: ChatSession, sessions: Iterable[ChatSession], stats: EngineStats | None
) -> MessageCost:
    """Hold a message of so many tokens against its tab.

    sessions: those whose answers tell how fast prompts are read.
    """
    model = session.model
    if model is None:
        return MessageCost(tokens)
    path = str(model.path)
    before = _tokens_before(session)
    loaded = next((one for one in stats.models if one.path == path), None) if stats is not None else None
    speed = reading_speed(
        node for one in sessions for node in one.conversation.nodes.values() if node.model == path
    )
    total = before + tokens
    most = model.max_tokens
    too_long = most is not None and not leaves_room(total, session.conversation.max_tokens, most)
    return MessageCost(
        tokens,
        kv_bytes=kv_bytes(loaded, total) - kv_bytes(loaded, before) if loaded is not None else None,
        seconds=tokens / speed if speed else None,
        share=total / most if most else None,
        room=max(0, most - before) if most is not None and too_long else None,
    )


def reading_speed(answers: Iterable[MessageNode]) -> float | None:
    """Tokens a second that a model read prompts with, by its last answers; None: not known."""
    read = [_read_speed(node.stats) for node in answers if node.stats is not None]
    known = [speed for speed in read if speed is not None]
    return median(known[-_LAST:]) if known else None


def _read_speed(stats: AnswerStats) -> float | None:
    fresh = stats.prompt_tokens - stats.cached_tokens
    return fresh * 1000 / stats.ttft_ms if fresh >= _LEAST_READ and stats.ttft_ms else None


def _tokens_before(session: ChatSession) -> int:
    """Tokens that stand before the message, by the last answer before it."""
    conversation, editing = session.conversation, session.writing.editing
    if session.stats is not None and editing is None:
        return session.stats.context_tokens
    leaf = conversation.leaf if editing is None else conversation.nodes[editing].parent
    path = conversation.path(leaf) if leaf is not None else []
    known = next((node.stats for node in reversed(path) if node.stats is not None), None)
    return max(0, known.prompt_tokens + known.tokens - session.freed_tokens) if known is not None else 0


def kv_bytes(model: ModelStats, tokens: int) -> int:
    """Return the KV of so many tokens; layers with a window keep no more than that."""
    if not model.kv_groups:
        return tokens * model.kv_bytes_per_token
    return sum(min(tokens, one.window or tokens) * one.bytes_per_token for one in model.kv_groups)
