"""Splitting a streamed answer into its reasoning and the answer proper.

How a model sets the two apart is a row of the engine's table of formats; this is the one place that
reads streams by it. Marks may be split over any number of deltas. White space around them belongs to
neither part and is dropped.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import groupby
from operator import itemgetter
from typing import Protocol

from engine import THINK, AnswerFormat, MessageFormat, TagFormat, ToolCall

_LONGEST_HEADER = 200


class Part(StrEnum):
    """Which part of an answer a piece of text belongs to."""

    REASONING = "reasoning"
    ANSWER = "answer"


Pieces = list[tuple[Part, str]]


def splitter_for(row: AnswerFormat = THINK, opened: bool = False) -> "Splitter":
    """Return what splits one answer of a model with this format.

    `opened`: the prompt has already begun the reasoning.
    """
    return _MessageSplitter(row, opened) if isinstance(row, MessageFormat) else _TagSplitter(row, opened)


def joined(pieces: Iterable[tuple[Part, str]]) -> Pieces:
    """Return the pieces, neighbours of one part as one."""
    return [(part, "".join(text for _, text in run)) for part, run in groupby(pieces, itemgetter(0))]


class AnswerSplitter(Protocol):
    """What parts one answer's stream."""

    @property
    def entered(self) -> bool:
        """Whether anything but plain text has come at any time."""

    @property
    def answer_begun(self) -> bool:
        """Whether a mark has begun the answer proper; thoughts may still follow."""

    @property
    def answering(self) -> bool:
        """Whether text of the answer proper has come."""

    @property
    def thinking(self) -> bool:
        """Whether what comes belongs to the thoughts."""

    @property
    def calls(self) -> Sequence[ToolCall]:
        """The calls of tools that have come."""

    def push(self, text: str, marker: str = "") -> Pieces:
        """Take the next delta of the stream; return what is decided, in order."""

    def flush(self) -> Pieces:
        """End the stream; return what was held back."""


class Splitter(ABC):
    """Splits one answer's stream."""

    def __init__(self) -> None:
        self.calls: Sequence[ToolCall] = ()
        """None: who looks for them wraps this."""
        self.entered = False
        """Whether anything but plain text has come at any time."""
        self.answer_begun = False
        """Whether a mark has begun the answer proper; thoughts may still follow."""
        self._part: Part | None = None
        self._held = ""
        self._trim = False
        """Whether the part begins behind a mark, and no text of it has come yet."""
        self._spoken: set[Part] = set()

    @property
    def answering(self) -> bool:
        """Whether text of the answer proper has come."""
        held = self._part is Part.ANSWER and bool(self._held.strip())
        return held or Part.ANSWER in self._spoken

    @property
    def thinking(self) -> bool:
        """Whether what comes belongs to the thoughts."""
        return self._part is Part.REASONING

    def push(self, text: str, marker: str = "") -> Pieces:
        """Take the next delta of the stream; return what is decided, in order."""
        pieces: Pieces = []
        if not marker or not self._take_marker(marker, pieces):
            self._held += text
        while self._step(pieces):
            pass
        return pieces

    @abstractmethod
    def flush(self) -> Pieces:
        """End the stream; return what was held back as a possible mark."""

    @abstractmethod
    def _take_marker(self, marker: str, pieces: Pieces) -> bool:
        """Take a token that may be a mark; False where it means nothing."""

    @abstractmethod
    def _step(self, pieces: Pieces) -> bool:
        """Advance by at most one state; False when more text is needed."""

    def _begin(self, part: Part) -> None:
        self._part, self._trim, self.entered = part, True, True
        self.answer_begun |= part is Part.ANSWER

    def _begin_plain(self) -> None:
        """Take the stream for an answer without any mark."""
        self._part = Part.ANSWER
        self.answer_begun = True

    def _write(self, text: str, pieces: Pieces) -> None:
        if text and self._part is not None:
            again = self._trim and self._part in self._spoken
            pieces.append((self._part, "\n\n" + text if again else text))
            self._spoken.add(self._part)
            self._trim = False

    def _write_but(self, keep: int, pieces: Pieces) -> None:
        """Write what is held but for the last `keep` characters and the white space in front of them."""
        ready = self._held[: len(self._held) - keep].rstrip()
        self._held = self._held[len(ready) :]
        self._write(ready, pieces)

    def _rest(self) -> Pieces:
        pieces: Pieces = []
        held, self._held = self._held, ""
        if not self._trim or held.strip():
            self._write(held, pieces)
        return pieces


class _TagSplitter(Splitter):
    """Reasoning between two tags."""

    def __init__(self, row: TagFormat, opened: bool) -> None:
        super().__init__()
        self._row = row
        self._tokens = set(row.markers) - row.in_text
        self._lead = ""
        """What may stand at the part's beginning and belongs to neither part."""
        self._wrap_end = ""
        if opened:
            self._begin(Part.REASONING)
            # Some models repeat the tag that the prompt ends with.
            self._lead = row.opens

    def flush(self) -> Pieces:
        if self._part is None and self._held:
            self._begin_plain()
        elif self._trim and self._lead == self._row.label and self._lead.startswith(self._held):
            self._held = ""
        return self._rest()

    def _take_marker(self, marker: str, pieces: Pieces) -> bool:
        row = self._row
        if marker == row.opens and (row.anywhere or self._part is None):
            self._end_part(pieces)
            self._think()
        elif marker == row.closes and (row.anywhere or self._part is Part.REASONING):
            self._end_part(pieces)
            self._answer()
        elif marker == self._wrap_end:
            self._end_part(pieces)
            self._wrap_end = ""
        elif row.wrapped and marker == row.wrapped[0] and self._part is None:
            self._end_part(pieces)
            self._answer()
            self._skip_lead()
        elif marker == self._lead and self._trim:
            self._skip_lead()
        else:
            return False
        return True

    def _end_part(self, pieces: Pieces) -> None:
        if self._trim and self._held.strip() == self._lead.strip():
            self._held = ""
        self._write(self._held.rstrip(), pieces)
        self._held = ""

    def _think(self) -> None:
        self._begin(Part.REASONING)
        self._lead = self._row.label

    def _answer(self) -> None:
        if self._part is not Part.ANSWER:
            self._begin(Part.ANSWER)
            self._lead = self._row.wrapped[0] if self._row.wrapped else ""

    def _skip_lead(self) -> None:
        if self._part is Part.ANSWER and self._row.wrapped:
            self._wrap_end = self._row.wrapped[1]
        self._lead = ""

    def _step(self, pieces: Pieces) -> bool:
        if self._part is None:
            return self._step_start()
        return self._step_space(pieces) if self._trim else self._step_text(pieces)

    def _step_start(self) -> bool:
        rest = self._held.lstrip()
        tag = "" if self._row.opens in self._tokens else self._row.opens
        if tag and rest.startswith(tag):
            self._held = rest[len(tag) :]
            self._think()
            return True
        if tag.startswith(rest):
            return False
        self._begin_plain()
        return True

    def _step_space(self, pieces: Pieces) -> bool:
        self._held = self._held.lstrip()
        lead = "" if self._lead in self._tokens else self._lead
        if lead and self._held.startswith(lead):
            self._held = self._held[len(lead) :]
            self._skip_lead()
            return True
        if lead.startswith(self._held):
            return False
        return self._step_text(pieces)

    def _step_text(self, pieces: Pieces) -> bool:
        """Write up to a tag that ends this part, and pass it."""
        tag = self._row.closes if self._part is Part.REASONING else self._wrap_end
        if tag in self._tokens:
            tag = ""
        before, found, after = self._held.partition(tag) if tag else (self._held, "", "")
        if found:
            self._held = before
            self._end_part(pieces)
            self._held = after
            if self._part is Part.REASONING:
                self._answer()
            else:
                self._wrap_end = ""
        elif self._part is Part.REASONING or tag:
            self._write_but(_open_suffix(self._held, tag), pieces)
        else:
            self._write(self._held, pieces)
            self._held = ""
        return bool(found)


class _MessageSplitter(Splitter):
    """Messages of which some are the answer."""

    def __init__(self, row: MessageFormat, opened: bool) -> None:
        super().__init__()
        self._row = row
        self._header = ""
        self._words = ""
        """The header but for markers."""
        if opened:
            self._begin(Part.REASONING)

    def flush(self) -> Pieces:
        if self._part is None:
            if self.entered:
                return []
            self._held = self._words
            self._begin_plain()
        return self._rest()

    def _take_marker(self, marker: str, pieces: Pieces) -> bool:
        row = self._row
        if marker not in row.markers:
            return False
        if self._part is not None:
            self._write(self._held.rstrip(), pieces)
            self._part, self._held, self._header, self._words = None, "", "", ""
        self.entered = True
        self._header += marker
        if marker in row.bodies:
            self._begin(Part.ANSWER if row.is_for_reader(self._header) else Part.REASONING)
        return True

    def _step(self, pieces: Pieces) -> bool:
        if self._part is None:
            return self._step_header()
        if self._trim:
            self._held = self._held.lstrip()
        if self._part is Part.REASONING:
            self._write_but(0, pieces)
        else:
            self._write(self._held, pieces)
            self._held = ""
        return False

    def _step_header(self) -> bool:
        self._header += self._held
        self._words += self._held
        self._held = ""
        if len(self._words) <= _LONGEST_HEADER and (self.entered or _may_address(self._words)):
            return False
        # The model keeps to no format: nothing of what it writes is lost.
        self._held = self._words
        self._begin_plain()
        return True


def _may_address(text: str) -> bool:
    """Whether a header may begin so; before any marker it can but name a recipient: " to=user"."""
    words = text.split()
    return not words or (len(words) == 1 and "to=".startswith(words[0][:3]))


def _open_suffix(text: str, tag: str) -> int:
    """Length of the longest end of `text` that is the start of a tag."""
    return next((n for n in range(min(len(text), len(tag) - 1), 0, -1) if tag.startswith(text[-n:])), 0)
