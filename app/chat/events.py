"""What a session reports to whoever shows its tab."""

from dataclasses import dataclass
from enum import StrEnum

from app.chat.reasoning import Part
from engine import SequenceState


class TabState(StrEnum):
    """What a tab is doing, as its glyph shows it."""

    IDLE = "idle"
    LOADING = "loading"
    QUEUED = "queued"
    READING = "reading"
    GENERATING = "generating"
    ASKING = "asking"
    CALLING = "calling"
    PAUSED = "paused"
    ERROR = "error"


NOT_WRITING = {
    SequenceState.QUEUED: TabState.QUEUED,
    SequenceState.PAUSED: TabState.QUEUED,
    SequenceState.PREFILL: TabState.READING,
}
"""What a tab is doing while the engine writes nothing for its answer."""


@dataclass(frozen=True, slots=True)
class Changed:
    """State, title, queue or model changed; nothing in the transcript."""


@dataclass(frozen=True, slots=True)
class PathChanged:
    """The shown messages changed other than by streaming; show them anew.

    `since` is the first that has changed although it was there before.
    """

    since: str | None = None


@dataclass(frozen=True, slots=True)
class TextStreamed:
    """Text was added to the end of an answer."""

    node_id: str
    pieces: tuple[tuple[Part, str], ...]


@dataclass(frozen=True, slots=True)
class AnswerFinished:
    """An answer ended; its node says how."""

    node_id: str


@dataclass(frozen=True, slots=True)
class ContextFilled:
    """A message is longer than the context has room for; it waits until some is made."""


@dataclass(frozen=True, slots=True)
class TextReturned:
    """Text that could not be sent goes back to the composer; `editing` is the message it was to replace."""

    text: str
    editing: str | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """Something to tell the reader."""

    text: str
    severity: str = "warning"


@dataclass(frozen=True, slots=True)
class CallAsked:
    """A model wants to have a tool run, as `ToolUse.asking` says; it waits for the reader's word."""


@dataclass(frozen=True, slots=True)
class PlanAsked:
    """Models of tabs would make room for the model of this one, as `ModelSlot.asked` says."""


SessionEvent = (
    Changed
    | PathChanged
    | TextStreamed
    | AnswerFinished
    | ContextFilled
    | TextReturned
    | Notice
    | CallAsked
    | PlanAsked
)
