"""Taking chats of a file in: what is there already is not there twice, and nothing there is changed."""

import uuid
from dataclasses import dataclass, replace
from typing import Protocol

from app.chat.conversation import Conversation
from app.chat.marks import NO_MARKS, Marks
from app.exchange.kept import KeptChat


class HistoryPort(Protocol):
    """The part of the history that takes chats in."""

    def load(self, conversation_id: str) -> Conversation | None:
        """Read a conversation."""

    def save(self, conversation: Conversation) -> None:
        """Save a conversation."""

    def mark(self, conversation_id: str, marks: Marks) -> bool:
        """Pin, archive and tag a conversation."""

    def taken_ids(self, conversation: Conversation) -> set[str]:
        """Return which ids of its messages are those of another conversation's."""


@dataclass(slots=True)
class Intake:
    """Takes in one chat after the other, and counts."""

    history: HistoryPort
    dry_run: bool = False
    new: int = 0
    grown: int = 0
    messages: int = 0
    same: int = 0

    def __str__(self) -> str:
        more = f" ({self.messages:,} messages)" if self.grown else ""
        return f"{self.new:,} new, {self.grown:,} with new messages{more}, {self.same:,} here already"

    def take(self, kept: KeptChat) -> None:
        """Take in a chat, or what is new of it; an empty one is none."""
        chat = kept.conversation
        if not chat.nodes and not chat.draft:
            return
        there = self.history.load(chat.id)
        taken = self.history.taken_ids(chat)
        if taken:
            _rename(chat, taken)
        if there is None:
            self.new += 1
            if not self.dry_run:
                self.history.save(chat)
                if kept.marks != NO_MARKS:
                    self.history.mark(chat.id, kept.marks)
            return
        fresh = [node for node in chat.nodes.values() if node.id not in there.nodes]
        if not fresh:
            self.same += 1
            return
        self.grown, self.messages = self.grown + 1, self.messages + len(fresh)
        if self.dry_run:
            return
        there.nodes |= {node.id: node for node in fresh}
        if chat.leaf is not None and there.leaf in [node.id for node in there.path(chat.leaf)]:
            there.leaf = chat.leaf
        there.updated = max(there.updated, chat.updated)
        self.history.save(there)


def _rename(chat: Conversation, taken: set[str]) -> None:
    """Give messages whose ids are those of another chat's others, the same ones each time."""
    names = {old: uuid.uuid5(uuid.NAMESPACE_OID, f"{chat.id}/{old}").hex for old in taken}
    nodes = [
        replace(node, id=names.get(node.id, node.id), parent=names.get(node.parent or "", node.parent))
        for node in chat.nodes.values()
    ]
    chat.nodes = {node.id: node for node in nodes}
    chat.leaf = names.get(chat.leaf or "", chat.leaf)
