"""What loading or waking a model will take of memory, and who would make room for it: plain data."""

from dataclasses import dataclass
from enum import StrEnum


class Release(StrEnum):
    """How a model gives its memory back; either way it answers again by itself when it is asked."""

    PAUSE = "pause"
    """Its weights wait in pinned host memory."""
    UNLOAD = "unload"
    """Its weights are read from the file again."""


@dataclass(frozen=True, slots=True)
class PlannedRelease:
    """One idle model that makes room."""

    model_id: int
    name: str
    path: str
    nbytes: int
    """Memory that comes free."""
    how: Release
    seconds: float
    """Expected, by speeds measured so far."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What one load needs, what is there, and what is to be done first."""

    name: str
    needed_bytes: int
    """Weights, the least KV and scratch of the model, and what the KV of running answers needs."""
    free_bytes: int
    """Before anybody makes room; KV memory counts as free, since all KV shares what is left."""
    releases: tuple[PlannedRelease, ...] = ()
    """The least recently used first."""
    seconds: float | None = None
    """Of the load itself, expected; None where no load was measured yet."""
    refusal: str | None = None
    """Why it cannot be done, and what would help."""
    placement: str = ""
    """What computes its layers where the device holds only a part, such as "28 of 36 layers on the GPU, 8 on
    the processor"."""
    tok_s: float | None = None
    """The speed expected of that, for one chat; None where it is not known."""
    device: str = ""
    """Where it will be, where there are several devices."""

    @property
    def model_ids(self) -> tuple[int, ...]:
        """Who makes room."""
        return tuple(release.model_id for release in self.releases)
