"""What a model of a catalogue, of which there is no file yet, will be like on this computer."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from app.models.fit.device import Memory
from app.models.fit.fit_words import fit_text
from app.models.fit.pace import Pace
from app.settings.words import size_text

if TYPE_CHECKING:
    from engine import Outline


class Described(Protocol):
    """What a catalogue says of a model."""

    @property
    def shape(self) -> "Outline | None":
        """Its published numbers."""

    @property
    def memory_8k(self) -> int:
        """Where there are none, about what it takes with a chat of 8,192 tokens."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """Bytes of weights and of a chat of 8,192 tokens, why they do not fit, and the speed."""

    memory: int
    shortage: str = ""
    """With what would make it fit; "": it fits."""
    tok_s: float | None = None
    """None: not known."""


def expect(model: Described, memory: Memory | None, pace: Pace) -> Expectation:
    """Hold a model against the device; without one nothing is said but what the catalogue knows."""
    from engine import Verdict, read_bytes

    if memory is None:
        return Expectation(model.memory_8k)
    if model.shape is None:
        free, needed = memory.room.free_bytes, size_text(model.memory_8k)
        if free is None or model.memory_8k <= free:
            return Expectation(model.memory_8k)
        said = f"needs {needed} of memory; {size_text(free)} of {memory.where} are free"
        return Expectation(model.memory_8k, said)
    footprint = model.shape.footprint
    fit = memory.fit_of(footprint)
    short = fit.verdict in (Verdict.FEWER, Verdict.TOO_LARGE)
    return Expectation(
        fit.weight_bytes + fit.kv_bytes,
        fit_text(fit) if short else "",
        pace.tok_s(read_bytes(footprint, memory.rules)) if fit.split is None else fit.tok_s,
    )
