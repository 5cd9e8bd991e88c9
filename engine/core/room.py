"""Who makes room for a model: idle ones, the least recently used first, and no more than are needed."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from engine.api.load_plan import LoadPlan, PlannedRelease, Release
from engine.device.fit_advice import DEVICE_KV_SHARE, LOAD_MARGIN, Holders, Need, does_not_fit


@dataclass(frozen=True, slots=True)
class ModelUse:
    """A resident model as far as making room goes."""

    model_id: int
    name: str
    path: str
    nbytes: int
    idle: bool
    """Whether nothing of it runs or waits its turn."""
    last_used: float


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a model needs before it can answer."""

    need: Need
    kv_bytes: int
    """The least that a chat with it takes."""
    answers_bytes: int = 0
    """KV that running answers of other models need, where its memory is what weights leave."""

    @property
    def total_bytes(self) -> int:
        """Everything together; of what weights leave KV gets a share."""
        kv = max(self.kv_bytes, self.answers_bytes)
        return self.need.weight_bytes + LOAD_MARGIN + int(kv / DEVICE_KV_SHARE)


class Speeds:
    """Bytes a second at which models were moved, as measured; those of the last moves count most."""

    _SMOOTHING = 0.5

    def __init__(self) -> None:
        self._rates: dict[str, float] = {}

    def measured(self, kind: str, nbytes: int, seconds: float) -> None:
        """Take note of one move."""
        if nbytes > 0 and seconds > 0:
            rate = nbytes / seconds
            before = self._rates.get(kind, rate)
            self._rates[kind] = before + self._SMOOTHING * (rate - before)

    def seconds(self, kind: str, nbytes: int, rate: float | None = None) -> float | None:
        """Expected for so many bytes; rate: bytes a second before anything was measured."""
        known = self._rates.get(kind, rate)
        return nbytes / known if known else None


def plan_room(
    wanted: Wanted,
    free: int,
    models: Iterable[ModelUse],
    release: Callable[[ModelUse], tuple[Release, float]],
    holders: Holders,
    seconds: float | None,
) -> LoadPlan:
    """Choose who makes room; `release` says how a model would, and in how many seconds."""
    needed, released, room = wanted.total_bytes, [], free
    for model in sorted((model for model in models if model.idle), key=lambda model: model.last_used):
        if room >= needed:
            break
        how, takes = release(model)
        released.append(PlannedRelease(model.model_id, model.name, model.path, model.nbytes, how, takes))
        room += model.nbytes
    refusal = None
    if room < needed:
        refusal, released = str(does_not_fit(wanted.need, free, holders, _busy(wanted, room - free))), []
    makes_room = tuple(_needed(released, needed - free))
    return LoadPlan(wanted.need.name, needed, free, makes_room, seconds, refusal=refusal)


def _needed(released: list[PlannedRelease], short: int) -> list[PlannedRelease]:
    """Without those that need not have been chosen, the most recently used first kept."""
    kept = list(released)
    for one in reversed(released):
        if sum(other.nbytes for other in kept) - one.nbytes >= short:
            kept.remove(one)
    return kept


def _busy(wanted: Wanted, idle_bytes: int) -> str:
    causes = []
    if wanted.answers_bytes > wanted.kv_bytes:
        causes.append("answers that are being written need their context")
    if idle_bytes:
        causes.append("pausing the idle models would not be enough")
    return "; ".join(causes)
