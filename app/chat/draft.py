"""A message being written: its text, what chips in it stand for, and what is saved of it."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from app.chat.conversation import Conversation
from app.settings.words import size_text
from app.writing.blocks import blocks_in
from app.writing.commands import as_message, as_written

_FOLD_LINES, _FOLD_CHARACTERS = 30, 3_000
_MOST_SHOWN = 50_000
"""Characters that are shown as they are when they come back: more hold up every key that is pressed."""
_CHIP = re.compile(r"\[(pasted|file|folder|chat) #(\d+)\b[^\[\]\n]*\]")
_REST_OF_LINE = re.compile(r"[^\S\n]*\S")


@dataclass(frozen=True, slots=True)
class Draft:
    """A message being written; `chips` are the texts that its chips stand for, by number."""

    text: str = ""
    chips: Mapping[int, str] = field(default_factory=dict)

    @property
    def expanded(self) -> str:
        """The whole message, chips replaced by what they stand for."""
        return _CHIP.sub(self._opened, self.text)

    def _opened(self, match: re.Match[str]) -> str:
        """What a chip stands for; the fences of what is attached are on lines of their own."""
        text = self.chips.get(int(match[2]))
        if text is None or match[1] == "pasted":
            return match[0] if text is None else text
        in_line = match.start() and self.text[match.start() - 1] != "\n"
        goes_on = _REST_OF_LINE.match(self.text, match.end()) is not None
        return ("\n\n" if in_line else "") + text + ("\n\n" if goes_on else "")

    @property
    def message(self) -> str:
        """What is sent of it."""
        return Draft(as_message(self.text), self.chips).expanded

    @classmethod
    def folded(cls, text: str) -> "Draft":
        """Make a draft of a whole text that was written before.

        What was attached becomes chips again, and so does a text that is still huge.
        """
        parts: list[str] = []
        chips: dict[int, str] = {}
        at = 0
        for number, block in enumerate(blocks_in(text), 1):
            chips[number] = text[block.start : block.end]
            parts += [text[at : block.start], attachment_chip(number, block.kind, block.name, chips[number])]
            at = block.end
        folded = "".join([*parts, text[at:]])
        return cls(folded, chips) if len(folded) <= _MOST_SHOWN else cls(chip(1, text), {1: text})

    def chip_at(self, position: int) -> tuple[int, int, str] | None:
        """Return begin, end and text of the chip at a position, else of the first one."""
        found = list(self.places)
        return next(
            (place for place in found if place[0] <= position <= place[1]), found[0] if found else None
        )

    @property
    def places(self) -> Iterator[tuple[int, int, str]]:
        """Begin, end and text of every chip, in order."""
        for match in _CHIP.finditer(self.text):
            if int(match[2]) in self.chips:
                yield match.start(), match.end(), self._opened(match)

    def after(self, text: str) -> "Draft":
        """Return it with a text in front that could not be sent."""
        return Draft.folded("\n\n".join(part for part in (text, self.expanded) if part.strip()))


class Writing:
    """What is being written in one tab, and the one place that changes what is saved of it.

    In front the composer edits a copy and hands it back with `keep`; behind, the draft stands here. The
    conversation's `draft` is what a restart brings back: the whole text, never another wording of a message,
    but what was being written before it.
    """

    def __init__(self, conversation: Conversation, save: Callable[[], None]) -> None:
        self.draft = Draft.folded(conversation.draft)
        self.editing: str | None = None
        """The message that is being written differently."""
        self._waiting = Draft()
        """What was being written before and stays saved while a message is written differently."""
        self._in_front: list[str] = []
        self._conversation = conversation
        self._save = save

    def keep(self, draft: Draft) -> None:
        """Take what the composer holds, and save it if that is something else than before."""
        self.draft = draft
        self._save_draft()

    def edit(self, node_id: str, text: str) -> None:
        """Write a message differently; what was being written waits."""
        if self.editing is None:
            self._waiting = self.draft
        self.editing = node_id
        self.draft = Draft.folded(as_written(text))

    def leave_editing(self, since: str = "") -> None:
        """Go back to what waits; `since` was written after the other wording was sent."""
        self.editing = None
        waiting, self._waiting = self._waiting, Draft()
        self.draft = Draft(since).after(waiting.expanded) if since.strip() else waiting
        self._save_draft()

    def take_back(self, text: str, editing: str | None = None) -> None:
        """Put a text in front that could not be sent; `editing` is the message that it is a wording of.

        While a message is written differently any other text waits with the draft: it is no part of that
        message, and leaving would lose it.
        """
        if editing is not None and self.editing is None:
            self.edit(editing, text)
        elif editing == self.editing:
            self.draft = self.draft.after(as_written(text))
        else:
            self._waiting = self._waiting.after(as_written(text))
        self._save_draft()

    def put_in_front(self, texts: Iterable[str]) -> None:
        """Have what waits to be sent come back before the draft when the chat is opened again."""
        in_front = [as_written(text) for text in texts if text.strip()]
        if in_front != self._in_front:
            self._in_front = in_front
            self._save_draft()

    def _save_draft(self) -> None:
        draft = (self.draft if self.editing is None else self._waiting).expanded
        text = "\n\n".join([*self._in_front, draft] if draft.strip() else self._in_front) or draft
        if text != self._conversation.draft:
            self._conversation.draft = text
            self._save()


def is_big(text: str) -> bool:
    """Whether a paste is folded into a chip."""
    return len(text) > _FOLD_CHARACTERS or text.count("\n") >= _FOLD_LINES


def chip(number: int, text: str) -> str:
    """Return what stands for a paste: `[pasted #1: 20,312 lines]`."""
    lines = text.count("\n") + 1
    size = f"{lines:,} lines" if lines > 1 else f"{len(text):,} characters"
    return f"[pasted #{number}: {size}]"


def attachment_chip(number: int, kind: str, name: str, text: str, tokens: int | None = None) -> str:
    """Return what stands for something attached: `[file #2 notes.md: 12 kB, 3,400 tokens]`.

    tokens: None where they are not known.
    """
    shown = name.replace("[", "(").replace("]", ")")
    size = size_text(len(text.encode()))
    return f"[{kind} #{number} {shown}: {size}" + (f", {tokens:,} tokens]" if tokens is not None else "]")
