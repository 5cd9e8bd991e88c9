"""Trees of messages of other programs: what is kept of them hangs together as it did there."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from app.chat.conversation import NEW_TITLE, Conversation, MessageNode, Role, title_from
from app.exchange.values import MOST_MESSAGES, Fields

_NAMES = uuid.UUID("3e2d3ad3-5b0e-4f5c-9d55-6a3c0f1c9a11")
"""What ids are made with: the same chat of a later export has the same ids."""


@dataclass(slots=True)
class Entry:
    """A message of another program. One without `role` is not kept; what comes after it is."""

    key: str
    children: Sequence[str] = ()
    role: Role | None = None
    text: str = ""
    reasoning: str = ""
    model: str | None = None
    created: float = 0.0


@dataclass(slots=True)
class ForeignChat:
    """A chat of another program."""

    program: str
    key: str
    title: str
    entries: Mapping[str, Entry]
    roots: Sequence[str]
    shown: str | None = None
    """The last message that is shown."""
    created: float = 0.0
    updated: float = 0.0
    system_prompt: str = ""
    _nodes: dict[str, str] = field(default_factory=dict)
    """By key of an entry, the id of the message that holds it, or that comes before it."""
    _alone: set[str] = field(default_factory=set)
    """Entries without alternatives since the last one that is kept."""

    def conversation(self) -> Conversation:
        """Return the conversation: neighbouring answers, between which a tool was used, are one."""
        chat_id = uuid.uuid5(_NAMES, f"{self.program}/{self.key}").hex
        made = Conversation(conversation_id=chat_id, title=" ".join(self.title.split()) or NEW_TITLE)
        made.system_prompt = self.system_prompt
        for entry, parent_key in self._walk():
            self._add(made, entry, parent_key)
        shown = self._nodes.get(self.shown or "")
        made.leaf = shown or next(reversed(made.nodes), None)
        if made.title == NEW_TITLE and made.nodes:
            made.title = title_from(next(iter(made.nodes.values())).text)
        times = [node.created for node in made.nodes.values()]
        made.created = self.created or min(times, default=0.0)
        made.updated = self.updated or max(times, default=made.created)
        return made

    def _walk(self) -> Iterator[tuple[Entry, str | None]]:
        """Yield entries, each after the one above it and once."""
        seen: set[str] = set()
        waiting: list[tuple[str, str | None]] = [(key, None) for key in reversed(self.roots)]
        while waiting:
            key, parent = waiting.pop()
            entry = self.entries.get(key)
            if entry is None or key in seen:
                continue
            seen.add(key)
            yield entry, parent
            waiting += [(child, key) for child in reversed(entry.children)]

    def _add(self, made: Conversation, entry: Entry, parent_key: str | None) -> None:
        parent = made.nodes.get(self._nodes.get(parent_key or "", ""))
        above = self.entries.get(parent_key or "")
        if above is not None and len(above.children) == 1 and (above.role or above.key in self._alone):
            self._alone.add(entry.key)
        if entry.role is None:
            if parent is not None:
                self._nodes[entry.key] = parent.id
            return
        if parent is not None and entry.key in self._alone and parent.role is entry.role is Role.ASSISTANT:
            parent.text = _joined(parent.text, entry.text)
            parent.reasoning = _joined(parent.reasoning, entry.reasoning)
            self._nodes[entry.key] = parent.id
            return
        node_id = uuid.uuid5(_NAMES, f"{self.program}/{self.key}/{entry.key}").hex
        made.nodes[node_id] = MessageNode(
            id=node_id,
            parent=parent.id if parent is not None else None,
            role=entry.role,
            text=entry.text,
            reasoning=entry.reasoning,
            model=entry.model,
            created=entry.created,
        )
        self._nodes[entry.key] = node_id


def _joined(before: str, text: str) -> str:
    return "\n\n".join(part for part in (before, text) if part)


def named_objects(chat: Fields, name: str) -> dict[str, Fields]:
    """Return the objects of an object by their keys."""
    found = chat.fields(name)
    if len(found.keys) > MOST_MESSAGES:
        chat.refuse(name, f"has more than {MOST_MESSAGES:,} entries")
    return {key: found.fields(key) for key in found.keys}
