"""From rows to conversations. A row may be odd: from a later version, damaged, or edited by hand.

What is not understood is left out and logged, and the rest of the chat opens as always. Nothing here
writes, so what was left out stays in the file. Runs on the history's own thread.
"""

import json
import logging
import math
import sqlite3
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from app.chat.conversation import NEW_TITLE, AnswerStats, Conversation, MessageNode, Role, Status
from app.chat.votes import Vote, read_votes
from app.history.file.rows import SAMPLING_FIELDS, ConversationRow, conversation_row
from app.tools.noted import NotedCall
from engine import Priority, RequestError, SamplingParams, Thinking

_AUTO = str(Thinking())
_ROLES, _STATUSES = frozenset(Role), frozenset(Status)
_STATS = tuple(field.name for field in fields(AnswerStats))
_log = logging.getLogger(__name__)
_MESSAGE = (
    "id, parent, role, text, reasoning, token_ids, reasoning_tokens, status, error, model, created, stats, "
    "above, calls, votes"
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A conversation, and what its row was then."""

    conversation: Conversation
    row: ConversationRow
    drafts: Mapping[int, str]
    """By window, the drafts beside the row's that were put behind it."""


def read_conversation(
    connection: sqlite3.Connection, conversation_id: str, has_ended: Callable[[int], bool]
) -> Loaded | None:
    """Read a conversation with its messages; None when there is none with this id.

    A draft that a window could not put into the row comes with it when `has_ended(window)`.
    """
    row = stored_row(connection, conversation_id)
    if row is None or is_hidden(connection, conversation_id):
        return None
    sampling, max_tokens, priority, chosen = _read_sampling(row)
    conversation = Conversation(
        conversation_id=row.id,
        title=row.title,
        model_path=row.model_path,
        system_prompt=row.system_prompt,
        sampling=sampling,
        max_tokens=max_tokens,
        priority=priority,
        chosen=chosen,
        thinking=_read_thinking(row),
        tools=_read_tools(row),
    )
    conversation.created, conversation.updated = row.created, row.updated
    conversation.draft = row.draft
    conversation.nodes, known_ancestor = _read_nodes(connection, conversation_id)
    conversation.leaf = known_ancestor(row.leaf) or next(reversed(conversation.nodes), None)
    as_read = conversation_row(conversation)
    drafts = {
        window: text_of(text)
        for window, text in connection.execute(
            "SELECT window, text FROM drafts WHERE conversation = ? ORDER BY window", (conversation_id,)
        )
        if isinstance(window, int) and has_ended(window)
    }
    conversation.draft = "\n\n".join(text for text in (row.draft, *drafts.values()) if text.strip())
    return Loaded(conversation, as_read, drafts)


def is_hidden(connection: sqlite3.Connection, conversation_id: str) -> bool:
    """Tell whether a conversation is deleted and can still be brought back."""
    sql = "SELECT 1 FROM conversations WHERE id = ? AND deleted IS NOT NULL"
    return connection.execute(sql, (conversation_id,)).fetchone() is not None


def stored_row(connection: sqlite3.Connection, conversation_id: str) -> ConversationRow | None:
    """Return a conversation's row as it stands in the file."""
    names = [field.name for field in fields(ConversationRow)]
    cursor = connection.execute(
        f"SELECT {', '.join(names)} FROM conversations WHERE id = ?", (conversation_id,)
    )
    found = cursor.fetchone()
    if found is None:
        return None
    raw = dict(zip(names, found, strict=True))
    return ConversationRow(
        id=conversation_id,
        title=text_of(raw["title"]) or NEW_TITLE,
        model_path=text_or_none(raw["model_path"]),
        system_prompt=text_of(raw["system_prompt"]),
        sampling=text_of(raw["sampling"]),
        leaf=text_or_none(raw["leaf"]),
        draft=text_of(raw["draft"]),
        created=number_of(raw["created"]),
        updated=number_of(raw["updated"]),
    )


def text_of(value: Any) -> str:
    """Return a value that should be text as text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "" if value is None else str(value)


def text_or_none(value: Any) -> str | None:
    """Return a value that should be text or nothing."""
    return None if value is None else text_of(value)


def number_of(value: Any) -> float:
    """Return a value that should be a finite number; 0 when it is none."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0


def _read_nodes(
    connection: sqlite3.Connection, conversation_id: str
) -> tuple[dict[str, MessageNode], Callable[[str | None], str | None]]:
    """Return the messages that are understood, and what finds the nearest of them at or above an id."""
    rows = connection.execute(
        f"SELECT {_MESSAGE} FROM messages WHERE conversation = ? ORDER BY position, number",
        (conversation_id,),
    )
    names = _MESSAGE.split(", ")
    nodes: dict[str, MessageNode] = {}
    parents: dict[str, str | None] = {}
    for found in rows:
        raw = dict(zip(names, found, strict=True))
        parents[text_of(raw["id"])] = text_or_none(raw["parent"])
        node = _node(raw)
        if node is not None:
            nodes[node.id] = node

    def known_ancestor(node_id: str | None) -> str | None:
        seen = set()
        while node_id is not None and node_id not in nodes and node_id not in seen:
            seen.add(node_id)
            node_id = parents.get(node_id)
        return node_id if node_id in nodes else None

    _attach(nodes, known_ancestor)
    return nodes, known_ancestor


def _attach(nodes: dict[str, MessageNode], known_ancestor: Callable[[str | None], str | None]) -> None:
    """Hang every message on the nearest one above it that is there, and break circles."""
    passed: set[str] = set()
    for node in nodes.values():
        parent = known_ancestor(node.parent)
        if parent is not None and parent not in passed and _is_above(node.id, parent, nodes):
            parent = None
        if parent != node.parent:
            _log.warning("message %s: the one before it (%r) cannot be shown", node.id, node.parent)
            node.parent = parent
        passed.add(node.id)


def _is_above(node_id: str, start: str | None, nodes: Mapping[str, MessageNode]) -> bool:
    seen: set[str] = set()
    while start is not None and start in nodes and start not in seen:
        if start == node_id:
            return True
        seen.add(start)
        start = nodes[start].parent
    return False


def _node(raw: Mapping[str, Any]) -> MessageNode | None:
    """Return a row's message, without what is odd in it; None when nobody knows who wrote it."""
    node_id = raw["id"]
    odd: list[str] = []
    if not isinstance(node_id, str) or raw["role"] not in _ROLES:
        _log.warning("message %r: its role %r is not known; it is left out", node_id, raw["role"])
        return None
    status = raw["status"] if raw["status"] in _STATUSES else None
    if status is None:
        odd.append(f"status {raw['status']!r}")
    ids = _token_ids(raw["token_ids"], odd)
    reasoning_tokens = raw["reasoning_tokens"]
    if not isinstance(reasoning_tokens, int) or not 0 <= reasoning_tokens <= len(ids):
        reasoning_tokens = 0
    node = MessageNode(
        id=node_id,
        parent=text_or_none(raw["parent"]),
        role=Role(raw["role"]),
        text=text_of(raw["text"]),
        reasoning=text_of(raw["reasoning"]),
        token_ids=ids,
        reasoning_tokens=reasoning_tokens,
        status=Status.STOPPED if status in (None, Status.STREAMING) else Status(status),
        error=text_or_none(raw["error"]),
        model=text_or_none(raw["model"]),
        created=number_of(raw["created"]),
        stats=_stats(raw["stats"], odd),
        above=text_or_none(raw["above"]),
        calls=_calls(raw["calls"], odd),
        votes=_votes(raw["votes"], odd),
    )
    if odd:
        _log.warning("message %s: left out what is not understood: %s", node_id, ", ".join(odd))
    return node


def _token_ids(blob: Any, odd: list[str]) -> list[int]:
    ids = array("I")
    try:
        ids.frombytes(blob)
    except (ValueError, TypeError):
        odd.append("token_ids")
        return []
    return ids.tolist()


def _calls(text: Any, odd: list[str]) -> tuple[NotedCall, ...]:
    if text is None:
        return ()
    try:
        records = json.loads(text)
        found = [NotedCall.read(record) for record in records] if isinstance(records, list) else [None]
    except (ValueError, TypeError, RecursionError):
        found = [None]
    if None in found:
        odd.append("calls")
    return tuple(call for call in found if call is not None)


def _votes(text: Any, odd: list[str]) -> dict[str, Vote]:
    if text is None:
        return {}
    try:
        votes = read_votes(json.loads(text))
    except (ValueError, TypeError, RecursionError):
        votes = None
    if votes is None:
        odd.append("votes")
    return votes or {}


def _stats(text: Any, odd: list[str]) -> AnswerStats | None:
    if text is None:
        return None
    try:
        values = json.loads(text)
        known = {name: values[name] for name in _STATS if name in values}
        if len(known) < len(values):
            odd += [f"stats.{name}" for name in _without(values, known)]
        if all(isinstance(value, int | float) or name == "ttft_ms" for name, value in known.items()):
            return AnswerStats(**known)
    except (ValueError, TypeError, RecursionError):
        pass
    odd.append("stats")
    return None


def _without(values: Iterable[str], known: Iterable[str]) -> list[str]:
    return sorted(set(values) - set(known))


def _read_sampling(
    row: ConversationRow,
) -> tuple[SamplingParams, int | None, Priority, frozenset[str]]:
    """Read how answers are made; what a later or damaged file says wrongly falls back to defaults."""
    try:
        values = json.loads(row.sampling)
        bias = {int(k): float(v) for k, v in values.get("logit_bias", {}).items()}
        known = {name: values[name] for name in SAMPLING_FIELDS if name in values}
        limit, priority = values.get("max_tokens"), Priority(values.get("priority", Priority.NORMAL))
        if limit is not None and (type(limit) is not int or limit < 1):
            raise ValueError(f"max_tokens {limit!r}")
        sampling = SamplingParams(**known, logit_bias=bias)
        return sampling, limit, priority, _chosen(values, sampling)
    except (ValueError, TypeError, AttributeError, RecursionError, RequestError) as error:
        _log.warning("chat %s: its sampling settings are not understood (%s)", row.id, error)
        return SamplingParams(), None, Priority.NORMAL, frozenset()


def _read_thinking(row: ConversationRow) -> Thinking:
    """Read how much is to be thought; a chat that does not say it leaves that to the template."""
    try:
        return Thinking.parse(json.loads(row.sampling).get("thinking", _AUTO))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        _log.warning("chat %s: its choice of thinking is not understood (%s)", row.id, error)
        return Thinking()


def _read_tools(row: ConversationRow) -> tuple[str, ...]:
    """Read whose tools may be called; a chat that does not say it clearly has none."""
    try:
        found = json.loads(row.sampling).get("tools", [])
    except (ValueError, AttributeError, RecursionError):
        return ()
    return tuple(found) if isinstance(found, list) and all(isinstance(name, str) for name in found) else ()


def _chosen(values: Mapping[str, Any], sampling: SamplingParams) -> frozenset[str]:
    """Which values the reader has set; of a chat that does not say it those that are not the usual ones."""
    if "chosen" in values:
        return frozenset(map(str, values["chosen"]))
    usual = SamplingParams()
    return frozenset(name for name in SAMPLING_FIELDS if getattr(sampling, name) != getattr(usual, name))
