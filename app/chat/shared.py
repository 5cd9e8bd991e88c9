"""What the sessions of all tabs share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from app.chat.conversation import Conversation
from app.chat.pump import Pump
from app.models.loader import EngineService


class HistoryPort(Protocol):
    """The part of the history store that a session writes to."""

    def save(self, conversation: Conversation) -> None:
        """Save the whole conversation, soon."""

    def append(self, conversation: Conversation, node_id: str) -> None:
        """Save an answer that has grown, soon."""


@dataclass(frozen=True, slots=True)
class Services:
    """What every session shares."""

    engine: EngineService
    pump: Pump
    history: HistoryPort
    keys: Mapping[str, str] = field(default_factory=dict)
    """The reader's own keys, which messages name."""
