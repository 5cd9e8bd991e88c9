"""How a server of tools is doing, as anybody may look at it."""

from dataclasses import dataclass
from enum import StrEnum

from app.tools.offered import Tool


class State(StrEnum):
    """What a server is doing."""

    OFF = "off"
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    """It did not start; it is started again when it is switched on again."""
    ENDED = "ended"
    """It was ready once; the next turn starts it again."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """One server as it is now."""

    name: str
    state: State
    tools: tuple[Tool, ...] = ()
    left_out: tuple[str, ...] = ()
    """Names of tools that cannot be offered."""
    why: str = ""
    """Why it is not running, as what is said of it: "ended with code 3"."""
