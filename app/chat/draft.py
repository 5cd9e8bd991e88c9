"""A message being written: its text, the big pastes that chips in it stand for, and what is saved of it."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from app.chat.conversation import Conversation

_FOLD_LINES, _FOLD_CHARACTERS = 30, 3_000
_CHIP = re.compile(r"\[pasted #(\d+): [\d,]+ (?:lines|characters)\]")


@dataclass(frozen=True, slots=True)
class Draft:
    """A message being written; `pastes` are the texts that chips stand for, by number."""

    text: str = ""
    pastes: Mapping[int, str] = field(default_factory=dict)

    @property
    def expanded(self) -> str:
        """The whole message, chips replaced by what they stand for."""
        return _CHIP.sub(lambda match: self.pastes.get(int(match[1]), match[0]), self.text)

    @classmethod
    def folded(cls, text: str) -> "Draft":
        """Make a draft of a whole text; a big one becomes a chip."""
        if not is_big(text):
            return cls(text)
        return cls(chip(1, text), {1: text})

    def after(self, text: str) -> "Draft":
        """Return it with a text in front that could not be sent."""
        kept = self.expanded
        return Draft.folded(f"{text}\n\n{kept}" if kept.strip() else text)


class Writing:
    """What is being written in one tab, and the one place that changes what is saved of it.

    In front the composer edits a copy and hands it back with `keep`; behind, the draft stands here. The
    conversation's `draft` is what a restart brings back: the whole text, never another wording of a message.
    """

    def __init__(self, conversation: Conversation, save: Callable[[], None]) -> None:
        self.draft = Draft.folded(conversation.draft)
        self.editing: str | None = None
        """The message that is being written differently."""
        self._conversation = conversation
        self._save = save

    def keep(self, draft: Draft) -> None:
        """Take what the composer holds, and save it if that is something else than before."""
        self.draft = draft
        text = "" if self.editing is not None else draft.expanded
        if text != self._conversation.draft:
            self._conversation.draft = text
            self._save()

    def edit(self, node_id: str, text: str) -> None:
        """Write a message differently."""
        self.editing = node_id
        self.draft = Draft.folded(text)

    def leave_editing(self) -> None:
        """Go back to what is saved."""
        self.editing = None
        self.draft = Draft.folded(self._conversation.draft)

    def take_back(self, text: str) -> None:
        """Put a text in front that could not be sent while nobody looked."""
        self.draft = self.draft.after(text)
        if self.editing is None:
            self._conversation.draft = self.draft.expanded
            self._save()

    def put_in_front(self, texts: Iterable[str]) -> None:
        """Have what was never sent come back with the draft after a restart."""
        waiting = [*texts, self._conversation.draft]
        self._conversation.draft = "\n\n".join(text for text in waiting if text.strip())


def is_big(text: str) -> bool:
    """Whether a paste is folded into a chip."""
    return len(text) > _FOLD_CHARACTERS or text.count("\n") >= _FOLD_LINES


def chip(number: int, text: str) -> str:
    """Return what stands for a paste: `[pasted #1: 20,312 lines]`."""
    lines = text.count("\n") + 1
    size = f"{lines:,} lines" if lines > 1 else f"{len(text):,} characters"
    return f"[pasted #{number}: {size}]"
