"""Splitting a streamed answer into its reasoning and the answer proper.

Reasoning is what stands between `<think>` and `</think>` at the very start of an answer. A template
may have opened the tag itself; then the stream begins inside it. Tags may be split over any number
of deltas. White space around the tags belongs to neither part and is dropped.
"""

from enum import StrEnum

OPEN_TAG = "<think>"
CLOSE_TAG = "</think>"


class Part(StrEnum):
    """Which part of an answer a piece of text belongs to."""

    REASONING = "reasoning"
    ANSWER = "answer"


class _State(StrEnum):
    START = "start"
    REASONING_SPACE = "reasoning_space"
    REASONING = "reasoning"
    ANSWER_SPACE = "answer_space"
    ANSWER = "answer"


class ReasoningSplitter:
    """Splits one answer's stream; `opened` when the template has already written `<think>`."""

    def __init__(self, opened: bool = False) -> None:
        self._state = _State.REASONING_SPACE if opened else _State.START
        self._held = ""
        self._opened = opened
        self.entered = opened
        """Whether reasoning has begun at any time."""

    @property
    def in_reasoning(self) -> bool:
        """Whether the text so far ends inside the reasoning."""
        return self._state in (_State.REASONING, _State.REASONING_SPACE)

    def push(self, text: str) -> list[tuple[Part, str]]:
        """Take the next piece of the stream; return what is decided, in order."""
        self._held += text
        pieces: list[tuple[Part, str]] = []
        while self._step(pieces):
            pass
        return pieces

    def flush(self) -> list[tuple[Part, str]]:
        """End the stream; return what was held back as a possible tag."""
        held, self._held = self._held, ""
        if not held or self._state in (_State.REASONING_SPACE, _State.ANSWER_SPACE):
            return [(Part.REASONING, held)] if held.strip() else []
        part = Part.REASONING if self._state is _State.REASONING else Part.ANSWER
        return [(part, held)]

    def _step(self, pieces: list[tuple[Part, str]]) -> bool:
        """Advance by at most one state; False when more text is needed."""
        if self._state is _State.START:
            return self._step_start()
        if self._state in (_State.REASONING_SPACE, _State.ANSWER_SPACE):
            return self._step_space()
        if self._state is _State.REASONING:
            return self._step_reasoning(pieces)
        if self._held:
            pieces.append((Part.ANSWER, self._held))
            self._held = ""
        return False

    def _step_start(self) -> bool:
        rest = self._held.lstrip()
        if rest.startswith(OPEN_TAG):
            self._held = rest[len(OPEN_TAG) :]
            self._state = _State.REASONING_SPACE
            self.entered = True
            return True
        if OPEN_TAG.startswith(rest):
            return False
        self._state = _State.ANSWER
        return True

    def _step_space(self) -> bool:
        self._held = self._held.lstrip()
        reasoning = self._state is _State.REASONING_SPACE
        if not self._held:
            return False
        if reasoning and self._opened and OPEN_TAG.startswith(self._held[: len(OPEN_TAG)]):
            # Some models repeat the tag that the template has written.
            self._opened = len(self._held) < len(OPEN_TAG)
            self._held = self._held if self._opened else self._held[len(OPEN_TAG) :]
            return not self._opened
        self._state = _State.REASONING if reasoning else _State.ANSWER
        return True

    def _step_reasoning(self, pieces: list[tuple[Part, str]]) -> bool:
        before, tag, after = self._held.partition(CLOSE_TAG)
        if tag:
            if before.rstrip():
                pieces.append((Part.REASONING, before.rstrip()))
            self._held = after
            self._state = _State.ANSWER_SPACE
            return True
        keep = _held_back(self._held)
        ready = self._held[: len(self._held) - keep]
        if ready:
            pieces.append((Part.REASONING, ready))
        self._held = self._held[len(ready) :]
        return False


def _held_back(text: str) -> int:
    """Length of the longest suffix that is white space and then the start of a closing tag."""
    tail = 0
    for length in range(min(len(text), len(CLOSE_TAG) - 1), 0, -1):
        if CLOSE_TAG.startswith(text[-length:]):
            tail = length
            break
    body = text[: len(text) - tail]
    return tail + len(body) - len(body.rstrip())
