"""Between conversations and the rows that hold them. Runs on the history's own thread."""

import json
import sqlite3
from array import array
from dataclasses import asdict, dataclass, fields
from typing import Any

from app.chat.conversation import AnswerStats, Conversation, MessageNode, Role, Status
from engine import Priority, RequestError, SamplingParams

_SAMPLING_FIELDS = tuple(f.name for f in fields(SamplingParams) if f.name != "logit_bias")


@dataclass(frozen=True, slots=True)
class ConversationRow:
    """What a conversation is besides its messages."""

    id: str
    title: str
    model_path: str | None
    system_prompt: str
    sampling: str
    leaf: str | None
    draft: str
    created: float
    updated: float


def conversation_row(conversation: Conversation) -> ConversationRow:
    """Take a snapshot of everything but the messages."""
    return ConversationRow(
        id=conversation.id,
        title=conversation.title,
        model_path=conversation.model_path,
        system_prompt=conversation.system_prompt,
        sampling=_sampling_text(conversation),
        leaf=conversation.leaf,
        draft=conversation.draft,
        created=conversation.created,
        updated=conversation.updated,
    )


def write_conversation(connection: sqlite3.Connection, row: ConversationRow) -> None:
    """Insert or update a conversation's row."""
    connection.execute(
        """INSERT INTO conversations VALUES (:id, :title, :model_path, :system_prompt, :sampling, :leaf,
               :draft, :created, :updated)
           ON CONFLICT (id) DO UPDATE SET title = :title, model_path = :model_path,
               system_prompt = :system_prompt, sampling = :sampling, leaf = :leaf, draft = :draft,
               updated = :updated""",
        {key: _clean(value) for key, value in asdict(row).items()},
    )


def write_message(
    connection: sqlite3.Connection, conversation: str, position: int, node: MessageNode, window: int
) -> None:
    """Insert or update one message as it stands now (it may be growing on another thread).

    A message of a conversation that is not there (it was deleted) is not written.
    """
    connection.execute(
        """INSERT INTO messages (id, conversation, position, parent, role, text, reasoning, token_ids,
               reasoning_tokens, status, error, model, created, stats, window)
           SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?
           WHERE EXISTS (SELECT 1 FROM conversations WHERE id = ?)
           ON CONFLICT (id) DO UPDATE SET text = excluded.text, reasoning = excluded.reasoning,
               token_ids = excluded.token_ids, reasoning_tokens = excluded.reasoning_tokens,
               status = excluded.status, error = excluded.error, model = excluded.model,
               stats = excluded.stats, window = excluded.window""",
        (
            node.id,
            conversation,
            position,
            node.parent,
            str(node.role),
            _clean(node.text),
            _clean(node.reasoning),
            array("I", list(node.token_ids)).tobytes(),
            node.reasoning_tokens,
            str(node.status),
            _clean(node.error),
            _clean(node.model),
            node.created,
            json.dumps(asdict(node.stats)) if node.stats else None,
            window,
            conversation,
        ),
    )


def index_message(connection: sqlite3.Connection, node_id: str) -> None:
    """Put a message's text into the full-text index, in place of what stood there."""
    row = connection.execute("SELECT number, text FROM messages WHERE id = ?", (node_id,)).fetchone()
    if row is not None:
        connection.execute("DELETE FROM message_index WHERE rowid = ?", (row[0],))
        connection.execute("INSERT INTO message_index (rowid, text) VALUES (?, ?)", row)


def read_conversation(connection: sqlite3.Connection, conversation_id: str) -> Conversation | None:
    """Read a conversation with its messages; None when there is none with this id."""
    cursor = connection.execute("SELECT * FROM conversations WHERE id = ?", (conversation_id,))
    found = cursor.fetchone()
    if found is None:
        return None
    row = ConversationRow(*found)
    sampling, max_tokens, priority = _read_sampling(row.sampling)
    conversation = Conversation(
        conversation_id=row.id,
        title=row.title,
        model_path=row.model_path,
        system_prompt=row.system_prompt,
        sampling=sampling,
        max_tokens=max_tokens,
        priority=priority,
    )
    conversation.draft = row.draft
    conversation.created, conversation.updated = row.created, row.updated
    conversation.nodes = _read_nodes(connection, conversation_id)
    if row.leaf in conversation.nodes:
        conversation.leaf = row.leaf
    elif conversation.nodes:
        conversation.leaf = next(reversed(conversation.nodes))
    return conversation


def _read_nodes(connection: sqlite3.Connection, conversation_id: str) -> dict[str, MessageNode]:
    rows = connection.execute(
        """SELECT id, parent, role, text, reasoning, token_ids, reasoning_tokens, status, error, model,
               created, stats
           FROM messages WHERE conversation = ? ORDER BY position, number""",
        (conversation_id,),
    )
    nodes: dict[str, MessageNode] = {}
    for row in rows:
        node = _node(row)
        if node.parent is None or node.parent in nodes:
            nodes[node.id] = node
    return nodes


def _node(row: tuple[Any, ...]) -> MessageNode:
    ids = array("I")
    ids.frombytes(row[5])
    status = Status(row[7])
    return MessageNode(
        id=row[0],
        parent=row[1],
        role=Role(row[2]),
        text=row[3],
        reasoning=row[4],
        token_ids=ids.tolist(),
        reasoning_tokens=row[6],
        status=Status.STOPPED if status is Status.STREAMING else status,
        error=row[8],
        model=row[9],
        created=row[10],
        stats=AnswerStats(**json.loads(row[11])) if row[11] else None,
    )


def _sampling_text(conversation: Conversation) -> str:
    values = {name: getattr(conversation.sampling, name) for name in _SAMPLING_FIELDS}
    values["logit_bias"] = {str(k): v for k, v in conversation.sampling.logit_bias.items()}
    values |= {"max_tokens": conversation.max_tokens, "priority": str(conversation.priority)}
    return json.dumps(values)


def _read_sampling(text: str) -> tuple[SamplingParams, int | None, Priority]:
    """Read how answers are made; what a later or damaged file says wrongly falls back to defaults."""
    try:
        values = json.loads(text)
        bias = {int(k): float(v) for k, v in values.get("logit_bias", {}).items()}
        known = {name: values[name] for name in _SAMPLING_FIELDS if name in values}
        priority = Priority(values.get("priority", Priority.NORMAL))
        return SamplingParams(**known, logit_bias=bias), values.get("max_tokens"), priority
    except (ValueError, TypeError, AttributeError, RequestError):
        return SamplingParams(), None, Priority.NORMAL


def _clean(value: Any) -> Any:
    """Lone surrogates cannot be stored as UTF-8; they become replacement characters."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
