"""A conversation as plain data: a tree of messages of which one path is shown.

Editing a message or regenerating an answer adds a sibling, so nothing is ever lost. Every answer
keeps the token ids that the model produced, so that history is never tokenised again.
"""

import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain, islice

from app.chat.reasoning import AnswerSplitter, Part, Pieces, joined, splitter_for
from app.chat.votes import Vote
from app.tools.noted import NotedCall
from app.writing.blocks import blocks_in
from engine import Finished, Priority, SamplingParams, TextDelta, Thinking, ToolCall

NEW_TITLE = "New chat"
_TITLE_LENGTH = 40
_FORK = re.compile(r"(.*) \(fork(?: (\d+))?\)", re.DOTALL)


class Role(StrEnum):
    """Who wrote a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class Status(StrEnum):
    """How far a message has come."""

    COMPLETE = "complete"
    STREAMING = "streaming"
    STOPPED = "stopped"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class AnswerStats:
    """What an answer cost: generated tokens, decode speed, time to the first token."""

    tokens: int
    tok_s: float
    ttft_ms: float | None = None
    cached_tokens: int = 0
    prompt_tokens: int = 0
    saved_ms: float = 0.0
    """What reading the cached tokens again would have taken."""

    @classmethod
    def of(cls, finished: Finished) -> "AnswerStats":
        """Return what an answer that has ended cost."""
        return cls(
            tokens=finished.completion_tokens,
            tok_s=finished.tok_s,
            ttft_ms=finished.ttft_ms,
            cached_tokens=finished.cached_tokens,
            prompt_tokens=finished.prompt_tokens,
            saved_ms=finished.saved_ms,
        )

    def followed_by(self, later: "AnswerStats") -> "AnswerStats":
        """Return what an answer cost that went on after this part of it."""
        seconds = sum(part.tokens / part.tok_s for part in (self, later) if part.tok_s)
        timed = sum(part.tokens for part in (self, later) if part.tok_s)
        return replace(self, tokens=self.tokens + later.tokens, tok_s=timed / seconds if seconds else 0.0)


@dataclass(slots=True)
class MessageNode:
    """One message of the tree. `parent` is None for the first message of a branch."""

    id: str
    parent: str | None
    role: Role
    text: str = ""
    reasoning: str = ""
    token_ids: list[int] = field(default_factory=list)
    reasoning_tokens: int = 0
    """How many leading ids of `token_ids` come before the answer proper: reasoning, with all its marks."""
    status: Status = Status.COMPLETE
    error: str | None = None
    model: str | None = None
    created: float = field(default_factory=time.time)
    stats: AnswerStats | None = None
    above: str | None = None
    """Set where the model reads nothing of what stands above this message any more: what it reads
    instead, a summary or nothing."""
    calls: tuple[NotedCall, ...] = ()
    """Of an answer the tools that it asked for; of a tool's message the call that it is the result of."""
    votes: Mapping[str, Vote] = field(default_factory=dict)
    """By the ids of answers of other chats, what this one is against them."""


class Conversation:
    """A tree of messages with the settings they are answered under."""

    def __init__(
        self,
        *,
        conversation_id: str | None = None,
        title: str = NEW_TITLE,
        model_path: str | None = None,
        system_prompt: str = "",
        sampling: SamplingParams | None = None,
        max_tokens: int | None = None,
        priority: Priority = Priority.NORMAL,
        chosen: Iterable[str] = (),
        thinking: Thinking | None = None,
        tools: Iterable[str] = (),
    ) -> None:
        """chosen: values of `sampling` in whose place nothing comes that a model's makers recommend; tools:
        names of the servers whose tools its models may call.
        """
        self.id = conversation_id or new_id()
        self.title = title
        self.model_path = model_path
        self.system_prompt = system_prompt
        self.sampling = sampling or SamplingParams()
        self.max_tokens = max_tokens
        self.priority = priority
        self.chosen = frozenset(chosen)
        self.thinking = thinking or Thinking()
        self.tools = tuple(tools)
        self.nodes: dict[str, MessageNode] = {}
        self.leaf: str | None = None
        self.draft = ""
        self.created = self.updated = time.time()
        self._splitters: dict[str, AnswerSplitter] = {}
        self._children: dict[str | None, list[MessageNode]] = {}
        """Of the first `_sorted` messages, those that follow each."""
        self._sorted = 0
        self._again: dict[str, tuple[MessageNode, int]] = {}
        """Answers whose beginning streams anew: what has come of it, and of how many ids it is."""

    def path(self, until: str | None = None) -> list[MessageNode]:
        """Return the shown messages from the first to the leaf (or to `until`)."""
        found: list[MessageNode] = []
        current = until if until is not None else self.leaf
        while current is not None:
            node = self.nodes[current]
            found.append(node)
            current = node.parent
        return found[::-1]

    def add_user(self, text: str) -> MessageNode:
        """Add a person's message after the leaf; the first one names an untitled conversation."""
        if self.title == NEW_TITLE and not self.nodes:
            self.title = title_from(text)
        return self._add(Role.USER, self.leaf, text=text)

    def resume(self, node_id: str, splitter: AnswerSplitter, deltas: Iterable[TextDelta]) -> None:
        """Let an answer go on behind `deltas`, the stream that it was so far."""
        node = self.nodes[node_id]
        node.text = node.reasoning = ""
        node.token_ids, node.reasoning_tokens = [], 0
        node.status, node.error = Status.STREAMING, None
        self._splitters[node_id] = splitter
        self.stream(node_id, deltas)

    def is_thinking(self, node_id: str) -> bool:
        """Whether an answer that is being written stands in its thoughts."""
        splitter = self._splitters.get(node_id)
        return splitter is not None and splitter.thinking

    def begin_answer(self, model: str | None, splitter: AnswerSplitter | None = None) -> MessageNode:
        """Start an answer after the leaf; `splitter` knows how the model sets reasoning apart."""
        node = self._add(Role.ASSISTANT, self.leaf, model=model, status=Status.STREAMING)
        self._splitters[node.id] = splitter or splitter_for()
        return node

    def begin_again(self, node_id: str, splitter: AnswerSplitter, answered: int) -> None:
        """Go on with an answer whose first `answered` ids come again in front of the new ones.

        Until they have all come the message stays as it is: nothing of it is lost at any moment.
        """
        node = self.nodes[node_id]
        node.status, node.error = Status.STREAMING, None
        self._splitters[node_id] = splitter
        if answered:
            self._again[node_id] = MessageNode(node_id, node.parent, node.role), answered

    def comes_again(self, node_id: str) -> bool:
        """Whether the beginning of an answer that goes on has not come whole yet."""
        return node_id in self._again

    def stream(self, node_id: str, deltas: Iterable[TextDelta]) -> Pieces:
        """Add deltas of an answer's stream; return the new pieces by part, for the view."""
        pieces = (self.append(node_id, delta.text, delta.token_ids, delta.marker) for delta in deltas)
        return joined(chain.from_iterable(pieces))

    def append(self, node_id: str, text: str, token_ids: Iterable[int] = (), marker: str = "") -> Pieces:
        """Add one delta of the stream, whose ids all belong to one part; return the new pieces by part."""
        again, answered = self._again.get(node_id, (None, 0))
        node = again or self.nodes[node_id]
        node.token_ids.extend(token_ids)
        splitter = self._splitters.get(node_id)
        if splitter is None:
            node.text += text
            return [(Part.ANSWER, text)] if text else []
        had_begun = splitter.answer_begun
        pieces = splitter.push(text, marker)
        if splitter.entered and not (had_begun and splitter.answering):
            node.reasoning_tokens = len(node.token_ids)
        _store(node, pieces)
        self.updated = time.time()
        if again is None:
            return pieces
        if len(again.token_ids) >= answered:
            self._take_beginning(again)
        return []

    def _take_beginning(self, again: MessageNode) -> None:
        """Put what came again in the place of what stood there; what was held back at its end is not yet."""
        del self._again[again.id]
        node = self.nodes[again.id]
        node.text, node.reasoning = again.text, again.reasoning
        node.token_ids, node.reasoning_tokens = again.token_ids, again.reasoning_tokens

    def finish(
        self,
        node_id: str,
        status: Status = Status.COMPLETE,
        *,
        error: str | None = None,
        stats: AnswerStats | None = None,
        calls: Iterable[ToolCall] = (),
    ) -> Pieces:
        """End an answer; return the pieces that were held back as a possible tag.

        calls: of tools, that came beside its text.
        """
        node = self.nodes[node_id]
        splitter = self._splitters.pop(node_id, None)
        unchanged = self._again.pop(node_id, None) is not None
        pieces = splitter.flush() if splitter and not unchanged else []
        _store(node, pieces)
        if splitter is not None and not unchanged:
            node.calls = tuple(NotedCall.of(call) for call in (*splitter.calls, *calls))
        node.status, node.error, node.stats = Status(status), error, stats
        self.updated = time.time()
        return pieces

    def add_call(self, call: NotedCall) -> MessageNode:
        """Add the message of a call's result after the leaf; it is to come."""
        node = self._add(Role.TOOL, self.leaf, status=Status.STREAMING)
        node.calls = (call,)
        return node

    def end_call(self, node_id: str, status: Status, text: str, error: str | None = None) -> None:
        """Put down what came of a call, as models read it; `error` says why there is no result."""
        node = self.nodes[node_id]
        node.text, node.status, node.error = text, status, error
        self.updated = time.time()

    @contextmanager
    def after(self, node_id: str) -> Iterator[None]:
        """Add messages behind this one; another branch that is shown stays so."""
        shown, self.leaf = self.leaf, node_id
        yield
        if shown != node_id:
            self.leaf = shown

    def branch_from(self, node_id: str) -> list[MessageNode]:
        """Return a message and what follows it by its newest branch, up to the next message of a person."""
        found = [self.nodes[node_id]]
        newest_child = {node.parent: node for node in self.nodes.values()}
        while (child := newest_child.get(found[-1].id)) is not None and child.role is not Role.USER:
            found.append(child)
        return found

    def siblings(self, node_id: str) -> list[MessageNode]:
        """Return the alternatives at this place of the tree, oldest first, itself included."""
        # Messages are only added and stay where they are.
        for node in islice(self.nodes.values(), self._sorted, None):
            self._children.setdefault(node.parent, []).append(node)
        self._sorted = len(self.nodes)
        return list(self._children[self.nodes[node_id].parent])

    def select(self, node_id: str) -> None:
        """Show the branch through this message, down to its newest descendant."""
        newest_child = {node.parent: node.id for node in self.nodes.values()}
        current = node_id
        while current in newest_child:
            current = newest_child[current]
        self.leaf = current

    def show_sibling(self, step: int) -> bool:
        """Show the alternative `step` places from the last message that has any; tell whether one has."""
        for node in reversed(self.path()):
            siblings = self.siblings(node.id)
            if len(siblings) > 1:
                at = [sibling.id for sibling in siblings].index(node.id)
                self.select(siblings[(at + step) % len(siblings)].id)
                return True
        return False

    def regenerate(
        self, node_id: str, model: str | None = None, splitter: AnswerSplitter | None = None
    ) -> MessageNode:
        """Start another answer beside this one."""
        node = self.nodes[node_id]
        if node.role is not Role.ASSISTANT:
            raise ValueError(f"message {node_id} is not an answer and cannot be regenerated")
        self.leaf = node.parent
        return self.begin_answer(model if model is not None else node.model, splitter)

    def fork(self, node_id: str | None = None) -> "Conversation":
        """Copy the path to a message (or the whole shown path) into a new conversation."""
        copy = Conversation(
            title=fork_title(self.title),
            model_path=self.model_path,
            system_prompt=self.system_prompt,
            sampling=self.sampling,
            max_tokens=self.max_tokens,
            priority=self.priority,
            chosen=self.chosen,
            thinking=self.thinking,
            tools=self.tools,
        )
        for node in self.path(node_id):
            status = Status.STOPPED if node.status is Status.STREAMING else node.status
            kept = replace(node, token_ids=list(node.token_ids), votes={}, status=status)
            fresh = replace(kept, id=new_id(), parent=copy.leaf)
            copy.nodes[fresh.id] = fresh
            copy.leaf = fresh.id
        return copy

    def last_answer(self) -> MessageNode | None:
        """Return the last answer of the shown path."""
        return next((n for n in reversed(self.path()) if n.role is Role.ASSISTANT), None)

    def last_user(self) -> MessageNode | None:
        """Return the last message of a person on the shown path."""
        return next((n for n in reversed(self.path()) if n.role is Role.USER), None)

    def _add(
        self,
        role: Role,
        parent: str | None,
        *,
        text: str = "",
        model: str | None = None,
        status: Status = Status.COMPLETE,
    ) -> MessageNode:
        node = MessageNode(new_id(), parent, role, text=text, model=model, status=status)
        self.nodes[node.id] = node
        self.leaf = node.id
        self.updated = node.created
        return node


def new_id() -> str:
    """Return an id unique over processes and restarts."""
    return uuid.uuid4().hex


def title_from(text: str) -> str:
    """Return a short title of what a person wrote, or of what is attached where that is all there is."""
    blocks = blocks_in(text)
    written, at = [], 0
    for block in blocks:
        written.append(text[at : block.start])
        at = block.end
    words = " ".join(" ".join([*written, text[at:]]).split())
    if not words and blocks:
        words = blocks[0].name
    if len(words) <= _TITLE_LENGTH:
        return words or NEW_TITLE
    return words[: _TITLE_LENGTH - 1].rsplit(" ", 1)[0].rstrip() + "…"


def fork_title(title: str) -> str:
    """Return the title of a conversation's fork: "Title (fork)", of a fork's "Title (fork 2)"."""
    match = _FORK.fullmatch(title)
    return f"{match[1]} (fork {int(match[2] or 1) + 1})" if match else f"{title} (fork)"


def _store(node: MessageNode, pieces: Pieces) -> None:
    for part, text in pieces:
        if part is Part.REASONING:
            node.reasoning += text
        else:
            node.text += text
