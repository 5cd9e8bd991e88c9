"""Which chats a list shows: the words and `#tags` of a query, in SQL."""

from dataclasses import dataclass

from app.chat.marks import ARCHIVED, EVERY, PINNED, RESERVED

_HAS_TAG = "c.id IN (SELECT t.conversation FROM tags t WHERE instr(t.tag, ?) = 1)"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is looked for. Archived chats are in a list of their own, `#archived`, and in `#all`."""

    words: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    """Beginnings of tags."""
    archived: bool | None = False
    """None: whether archived or not."""
    pinned: bool = False

    @property
    def condition(self) -> str:
        """The condition on a conversation `c`; `values` go with it."""
        parts = ["c.deleted IS NULL"]
        parts += [f"c.archived = {int(self.archived)}"] if self.archived is not None else []
        parts += ["c.pinned = 1"] if self.pinned else []
        return " AND ".join([*parts, *[_HAS_TAG] * len(self.tags)])

    @property
    def values(self) -> tuple[str, ...]:
        """What the condition's marks stand for."""
        return self.tags


ALL = Wanted()
"""Every chat that is not archived."""


def wanted_by(query: str) -> Wanted:
    """Read a query: words, and those with a `#` in front, which name tags or one of `RESERVED`."""
    parts = query.replace("\0", " ").split()
    tags = [part[1:].casefold() for part in parts if part.startswith("#") and len(part) > 1]
    return Wanted(
        words=tuple(part for part in parts if not part.startswith("#")),
        tags=tuple(tag for tag in tags if tag not in RESERVED),
        archived=None if EVERY in tags else ARCHIVED in tags,
        pinned=PINNED in tags,
    )
