"""What waits to be written, and what this window knows of the file: plain data of the history."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.chat.conversation import Conversation, MessageNode
from app.history.file.reading import Loaded
from app.history.file.rows import ConversationRow

Signature = tuple[object, ...]
"""Tells whether a message has changed since it was written."""


@dataclass(frozen=True, slots=True)
class OpenTabs:
    """The tabs of the last time: conversation ids in order, and the active one."""

    ids: tuple[str, ...] = ()
    active: str | None = None
    read_only: frozenset[str] = frozenset()
    """Those that another window writes."""


@dataclass(slots=True)
class Pending:
    """What waits to be written; the newest state of a thing replaces the older."""

    conversations: dict[str, Conversation] = field(default_factory=dict)
    """Those that have something in `rows` or `messages`."""
    rows: dict[str, ConversationRow] = field(default_factory=dict)
    messages: dict[str, tuple[str, int, MessageNode]] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    """Deleted so that they can be brought back."""
    discarded: set[str] = field(default_factory=set)
    """Deleted for good, but only if nothing is in them."""
    tabs: OpenTabs | None = None

    def __bool__(self) -> bool:
        return bool(
            self.conversations or self.messages or self.hidden or self.discarded or self.tabs is not None
        )

    def before(self, newer: "Pending") -> "Pending":
        """Return both together."""
        return Pending(
            self.conversations | newer.conversations,
            self.rows | newer.rows,
            self.messages | newer.messages,
            self.hidden | newer.hidden,
            self.discarded | newer.discarded,
            newer.tabs or self.tabs,
        )

    def forget(self, conversation_id: str) -> None:
        """Do not write a conversation."""
        self.conversations.pop(conversation_id, None)
        self.rows.pop(conversation_id, None)
        for node_id in [key for key, entry in self.messages.items() if entry[0] == conversation_id]:
            del self.messages[node_id]


@dataclass(slots=True)
class Known:
    """What this window has read or written: what it changes is told from what others change by that."""

    rows: dict[str, ConversationRow] = field(default_factory=dict)
    messages: dict[str, Signature] = field(default_factory=dict)
    drafts: dict[str, Mapping[int, str]] = field(default_factory=dict)
    """By window, the drafts beside a conversation's row that are part of its draft here."""

    def take(self, loaded: Loaded) -> None:
        """Remember what was read."""
        conversation = loaded.conversation
        self.rows[conversation.id] = loaded.row
        self.drafts[conversation.id] = loaded.drafts
        self.messages |= {node.id: signature(node) for node in conversation.nodes.values()}

    def update(self, newer: "Known") -> None:
        """Add what was written."""
        self.rows |= newer.rows
        self.messages |= newer.messages
        self.drafts |= newer.drafts

    def forget(self, conversation_id: str) -> None:
        """Forget a conversation that is deleted."""
        self.rows.pop(conversation_id, None)
        self.drafts.pop(conversation_id, None)


def signature(node: MessageNode) -> Signature:
    """Return what changes whenever the message does."""
    lengths = (len(node.text), len(node.reasoning), len(node.token_ids))
    return (node.status, *lengths, node.error, node.stats, node.above, node.calls, node.votes)
