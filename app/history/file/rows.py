"""From conversations to the rows that hold them. Runs on the history's own thread.

Another window may have changed a row since this one read it: only what changed here is written.
"""

import json
import sqlite3
from array import array
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from app.chat.conversation import Conversation, MessageNode
from app.history.file.search_index import index_text
from engine import SamplingParams

SAMPLING_FIELDS = tuple(f.name for f in fields(SamplingParams) if f.name != "logit_bias")


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


_CHANGING = ("title", "model_path", "system_prompt", "sampling", "leaf", "draft")


def conversation_row(conversation: Conversation) -> ConversationRow:
    """Take a snapshot of everything but the messages."""
    row = ConversationRow(
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
    return replace(row, **{name: _clean(getattr(row, name)) for name in _CHANGING})


def changes(row: ConversationRow, base: ConversationRow | None) -> dict[str, str | None]:
    """Return what a row says otherwise than `base`, which this window has read or written."""
    wanted = {name: getattr(row, name) for name in _CHANGING}
    return {name: value for name, value in wanted.items() if base is None or value != getattr(base, name)}


def insert_conversation(connection: sqlite3.Connection, row: ConversationRow) -> None:
    """Insert a row that is not there."""
    values = asdict(row)
    marks = ", ".join(f":{name}" for name in values)
    connection.execute(f"INSERT INTO conversations ({', '.join(values)}) VALUES ({marks})", values)


def update_conversation(
    connection: sqlite3.Connection, current: ConversationRow, row: ConversationRow, changed: dict[str, Any]
) -> None:
    """Write into the row `current` what has changed."""
    if "sampling" in changed:
        changed = changed | {"sampling": _with_unknown(current.sampling, row.sampling)}
    values = changed | {"updated": max(current.updated, row.updated)}
    setting = ", ".join(f"{name} = :{name}" for name in values)
    connection.execute(f"UPDATE conversations SET {setting} WHERE id = :id", values | {"id": row.id})


def _with_unknown(current: str, wanted: str) -> str:
    """Keep what another version has written beside the settings that this one knows."""
    try:
        return json.dumps(json.loads(current) | json.loads(wanted))
    except (ValueError, TypeError, RecursionError):
        return wanted


def write_message(
    connection: sqlite3.Connection, conversation: str, position: int, node: MessageNode, window: int
) -> None:
    """Insert or update one message as it stands now (it may be growing on another thread)."""
    connection.execute(
        """INSERT INTO messages (id, conversation, position, parent, role, text, reasoning, token_ids,
               reasoning_tokens, status, error, model, created, stats, above, calls, votes,
               window)
           VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
           ON CONFLICT (id) DO UPDATE SET text = excluded.text, reasoning = excluded.reasoning,
               token_ids = excluded.token_ids, reasoning_tokens = excluded.reasoning_tokens,
               status = excluded.status, error = excluded.error, model = excluded.model,
               stats = excluded.stats, above = excluded.above, calls = excluded.calls,
               votes = excluded.votes, window = excluded.window""",
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
            _clean(node.above),
            _calls_text(node),
            json.dumps(dict(node.votes)) if node.votes else None,
            window,
        ),
    )


def index_message(connection: sqlite3.Connection, node_id: str) -> None:
    """Put a message's text into the full-text indexes, in place of what stood there."""
    row = connection.execute("SELECT number, text FROM messages WHERE id = ?", (node_id,)).fetchone()
    if row is not None:
        index_text(connection, *row)


def _sampling_text(conversation: Conversation) -> str:
    values = {name: getattr(conversation.sampling, name) for name in SAMPLING_FIELDS}
    values["logit_bias"] = {str(k): v for k, v in conversation.sampling.logit_bias.items()}
    values |= {"max_tokens": conversation.max_tokens, "priority": str(conversation.priority)}
    values |= {"chosen": sorted(conversation.chosen), "thinking": str(conversation.thinking)}
    values |= {"tools": list(conversation.tools)}
    return json.dumps(values)


def _calls_text(node: MessageNode) -> str | None:
    # JSON as it is, with escapes: whatever a model writes can be stored.
    return json.dumps([call.record for call in node.calls]) if node.calls else None


def _clean(value: Any) -> Any:
    """Lone surrogates cannot be stored as UTF-8; they become replacement characters."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
