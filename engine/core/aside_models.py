"""Models that gave their memory back and are not forgotten: handles stay, requests wait for them."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from engine.api.request import Action, Priority
from engine.api.stats import ModelStats, SequenceState
from engine.core.model_loader import ModelOrigin, ResidentModel
from engine.core.output_processor import OutputProcessor
from engine.scheduler.sequence import Sequence, WaitCause

log = logging.getLogger(__name__)


@dataclass(slots=True)
class AsideModel:
    """One of them."""

    origin: ModelOrigin
    stats: ModelStats
    last_used: float
    nbytes: int
    """What it takes of the device again."""
    kept: ResidentModel | None
    """Everything but the weights on the device, which wait in host memory; None: the file is read again."""
    waiting: list[Sequence] = field(default_factory=list)


class AsideModels:
    """By key; changed by the engine's thread alone."""

    def __init__(self) -> None:
        self._models: dict[int, AsideModel] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._models

    def __iter__(self) -> Iterator[AsideModel]:
        return iter(tuple(self._models.values()))

    def get(self, key: int) -> AsideModel | None:
        """A model that is aside, or None."""
        return self._models.get(key)

    def add(self, key: int, model: AsideModel) -> None:
        """Put a model aside."""
        self._models[key] = model

    def remove(self, key: int) -> AsideModel | None:
        """It is back, or forgotten."""
        return self._models.pop(key, None)

    def park(self, sequence: Sequence) -> None:
        """Let a request wait until its model is back."""
        if not sequence.user_paused:
            sequence.state, sequence.wait_cause = SequenceState.QUEUED, WaitCause.MODEL
        self._models[sequence.model].waiting.append(sequence)

    def control(self, sequence: Sequence, what: Action | Priority) -> None:
        """Pause, resume or rank a request that waits; whoever resumes one wakes its model."""
        if isinstance(what, Priority):
            sequence.priority = what
        elif what is Action.PAUSE:
            sequence.user_paused = True
            sequence.state, sequence.wait_cause = SequenceState.PAUSED, WaitCause.REQUEST
        elif what is Action.RESUME:
            sequence.user_paused = False
            sequence.state, sequence.wait_cause = SequenceState.QUEUED, WaitCause.MODEL

    def parked(self, outputs: Mapping[int, OutputProcessor], key: int) -> list[Sequence]:
        """Requests that wait for a model and have not ended, in their order."""
        aside = self._models.get(key)
        return [] if aside is None else [s for s in aside.waiting if s.sequence_id in outputs]

    def clear(self) -> None:
        """Forget all of them."""
        self.forget_copies()
        self._models.clear()

    def forget_copies(self) -> None:
        """What host memory has of weights is of no use any more: files are read again."""
        for model in self:
            kept, model.kept = model.kept, None
            try:
                if kept is not None:
                    kept.runner.close()
            except Exception:
                log.exception("closing a model that is aside failed")

    def stats(self) -> tuple[ModelStats, ...]:
        """What a snapshot says of them."""
        return tuple(replace(model.stats, idle_since=model.last_used) for model in self)


def working(key: int, sequences: Mapping[int, Sequence]) -> bool:
    """Whether something of a model runs or waits its turn; what was paused on request does neither."""
    return any(s.model == key and not s.user_paused for s in sequences.values())
