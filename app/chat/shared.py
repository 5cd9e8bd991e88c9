"""What the sessions of all tabs share."""

from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from app.chat.conversation import Conversation
from app.chat.measured import Measured
from app.chat.pump import Pump
from app.models.loader import EngineService
from app.tools.servers import ToolServers


class HistoryPort(Protocol):
    """The part of the history store that a session writes to."""

    def save(self, conversation: Conversation) -> None:
        """Save the whole conversation, soon."""

    def append(self, conversation: Conversation, node_id: str) -> None:
        """Save an answer that has grown, soon."""


_ENCODING_THREADS = 32


def _encoders() -> Executor:
    return ThreadPoolExecutor(_ENCODING_THREADS, "encoding")


@dataclass(slots=True)
class Services:
    """What every session shares."""

    engine: EngineService
    pump: Pump
    history: HistoryPort
    keys: dict[str, str] = field(default_factory=dict)
    """The reader's own keys, which messages name; they may change while the app runs."""
    encoders: Executor = field(default_factory=_encoders)
    """Where prompts are made. A model's template may take seconds; who leaves does not wait for it."""
    stop_repeats: bool = True
    """Whether an answer that repeats itself is ended; it may change while the app runs."""
    tools: ToolServers | None = None
    """The servers whose tools models may call; None: there are no tools."""
    measured: Measured | None = None
    """Who remembers how fast answers were; None: nobody."""
