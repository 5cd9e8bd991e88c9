"""Splitting calls of tools off an answer while it streams."""

from app.chat.reasoning import AnswerSplitter, Part, Pieces, splitter_for
from app.models.backends.port import Asked
from app.tools.calls import CallReader, Tools
from engine import ARGUMENTS_MARK, CALL_ID_MARK, ToolCall, ToolFormat


def splitter_of(asked: Asked, tools: Tools) -> AnswerSplitter:
    """Return what parts an answer's stream; it takes calls out of it where they stand in the text."""
    prompt = asked.prompt
    plain = splitter_for(prompt.answer_format, prompt.starts_in_reasoning)
    row = asked.tool_format
    return plain if row is None else CallSplitter(plain, row, tools)


class CallSplitter:
    """Splits as another does, and takes calls out of the answer proper."""

    def __init__(self, inner: AnswerSplitter, row: ToolFormat, tools: Tools) -> None:
        self._inner = inner
        self._reader = CallReader(row, tools)
        self._marks = frozenset((row.opens, row.closes, ARGUMENTS_MARK, CALL_ID_MARK))
        self.calls: list[ToolCall] = []

    @property
    def entered(self) -> bool:
        """Whether anything but plain text has come at any time."""
        return self._inner.entered

    @property
    def answer_begun(self) -> bool:
        """Whether a mark has begun the answer proper."""
        return self._inner.answer_begun

    @property
    def answering(self) -> bool:
        """Whether text of the answer proper has come."""
        return self._inner.answering

    @property
    def thinking(self) -> bool:
        """Whether what comes belongs to the thoughts."""
        return self._inner.thinking

    def push(self, text: str, marker: str = "") -> Pieces:
        """Take the next delta of the stream; return what is decided, in order."""
        if marker and marker in self._marks:
            # The mark of a call is read as text, with what stands inside the call.
            text, marker = marker, ""
        return self._without_calls(self._inner.push(text, marker))

    def flush(self) -> Pieces:
        """End the stream; return what was held back."""
        pieces = self._without_calls(self._inner.flush())
        return pieces + self._said(self._reader.flush())

    def _without_calls(self, pieces: Pieces) -> Pieces:
        found: Pieces = []
        for part, text in pieces:
            found += [(part, text)] if part is Part.REASONING else self._said(self._reader.push(text))
        return found

    def _said(self, found: list[str | ToolCall]) -> Pieces:
        self.calls += [one for one in found if isinstance(one, ToolCall)]
        return [(Part.ANSWER, one) for one in found if isinstance(one, str)]
