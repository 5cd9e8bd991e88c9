"""How models are sorted: favourites first, what cannot be opened last."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from app.models.fit.speeds import Speed
from app.models.listed.listing import ModelFile
from app.models.listed.notes import Notes


class Order(StrEnum):
    """What comes first; also how it is said."""

    USED = "last used"
    NAME = "name"
    SIZE = "size"
    SPEED = "speed"
    DATE = "date"

    @property
    def following(self) -> "Order":
        """The next one, round the end."""
        orders = list(Order)
        return orders[(orders.index(self) + 1) % len(orders)]


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of models besides their files."""

    notes: Notes = field(default_factory=Notes)
    speeds: Mapping[Path, Speed] = field(default_factory=dict)
    by_torch: Mapping[Path, tuple[str, ...]] = field(default_factory=dict)
    """What torch computes of models that are open, in place of kernels."""
    devices: Mapping[Path, str] = field(default_factory=dict)
    """What models that are open are on, where there are several devices."""

    @property
    def order(self) -> Order:
        """The reader's, or what was used last first."""
        return Order(self.notes.order) if self.notes.order in set(Order) else Order.USED

    def is_favourite(self, model: ModelFile) -> bool:
        """Tell whether the reader has marked it."""
        return model.path in self.notes.favourites

    def used(self, model: ModelFile) -> float:
        """When it was used last, 0 for never."""
        return self.notes.used.get(model.path, 0.0)

    def tok_s(self, model: ModelFile) -> float:
        """How fast it wrote here, 0 where that is not known."""
        speed = self.speeds.get(model.path)
        return 0.0 if speed is None else speed.tok_s


def sort_models(models: Iterable[ModelFile], known: Known, order: Order) -> list[ModelFile]:
    """Sort; what is equal stays as it was."""
    keys: dict[Order, Callable[[ModelFile], Any]] = {
        Order.USED: lambda model: -known.used(model),
        Order.NAME: lambda model: model.title.casefold(),
        Order.SIZE: lambda model: -model.size_bytes,
        Order.SPEED: lambda model: -known.tok_s(model),
        Order.DATE: lambda model: -model.modified,
    }
    key = keys[order]
    return sorted(
        models, key=lambda model: (model.problem is not None, not known.is_favourite(model), key(model))
    )
