"""How a reader keeps chats in order: pinned, archived, tagged."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

MOST_TAGS = 20
_LONGEST_TAG = 40
_NOT_IN_TAG = re.compile(r"[^\w\-./:+]+")
ARCHIVED, PINNED, EVERY = "archived", "pinned", "all"
RESERVED = (ARCHIVED, PINNED, EVERY)
"""What `#` finds besides tags; no tag has these names."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Pinned chats stand first, archived ones only in the archive."""

    pinned: bool = False
    archived: bool = False
    tags: tuple[str, ...] = ()


NO_MARKS = Marks()


def tags_from(words: Iterable[str]) -> tuple[str, ...]:
    """Return the tags that words name, in small letters, each once and in order; `#` may stand in front."""
    named = (_NOT_IN_TAG.sub("", word).casefold()[:_LONGEST_TAG] for word in words)
    tags = {tag for tag in named if tag and tag not in RESERVED}
    return tuple(sorted(tags)[:MOST_TAGS])
