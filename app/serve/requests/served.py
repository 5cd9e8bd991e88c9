"""The models that are served, and what clients may call them."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.serve.http.errors import ApiError
from app.serve.http.fields import Fields
from app.serve.requests.port import ServedModel
from engine import SamplingParams

_STARTED = int(time.time())


@dataclass(frozen=True, slots=True)
class Served:
    """One model as clients see it."""

    model: ServedModel
    id: str
    """Its name in answers and lists."""
    names: frozenset[str]
    """What else clients may call it, in small letters."""
    usual: SamplingParams
    """How it samples where a request says nothing."""
    aliases: tuple[str, ...] = ()
    """Names that lists show beside it."""
    max_tokens: int | None = None
    """Most tokens of an answer where a request says nothing."""
    created: int = _STARTED

    def without_paths(self, message: str) -> str:
        """An error's words as clients may read them."""
        path = self.model.path
        return message.replace(str(path), self.id).replace(f"{path.parent}/", "")


class Loader(Protocol):
    """What loads models on demand."""

    @property
    def loaded(self) -> Sequence[Served]:
        """Those that it has loaded."""

    def note(self, served: Served, /) -> None:
        """Take note that a model is asked for."""

    async def listed(self) -> Collection[str]:
        """Names of all that it could load."""

    async def load(self, name: str, /) -> None:
        """Load the model of this name if there is one; raises `ApiError`."""


class Mover(Protocol):
    """What has another device load a model whose own is lost."""

    def now(self, served: Served, /) -> Served:
        """It with its model of now."""

    def check(self, served: Served, /) -> None:
        """Raise `ApiError` for a model that is on its way."""


class ServedModels:
    """All of them, the first one being meant where a request names none."""

    def __init__(
        self,
        loaded: Callable[[], Sequence[Served]],
        on_demand: Loader | None = None,
        mover: Mover | None = None,
    ) -> None:
        """mover: of those that are `loaded`."""
        self._loaded = loaded
        self._on_demand, self._mover = on_demand, mover

    @property
    def models(self) -> Sequence[Served]:
        """Those that are loaded now."""
        loaded = self._loaded() if self._mover is None else [*map(self._mover.now, self._loaded())]
        return loaded if self._on_demand is None else [*loaded, *self._on_demand.loaded]

    async def others(self) -> Sequence[str]:
        """Names of those that would be loaded on demand."""
        loaded = {served.id for served in self.models}
        listed = () if self._on_demand is None else await self._on_demand.listed()
        return [name for name in listed if name not in loaded]

    async def prepare(self, fields: Fields) -> None:
        """Have the model that a request names loaded, where that is allowed or its device is lost.

        Raises `ApiError`.
        """
        name = fields.text("model")
        served = next(iter(self.models), None) if name is None else self._find(name)
        if self._mover is not None and served is not None:
            self._mover.check(served)
        if self._on_demand is None or name is None:
            return
        if served is not None:
            self._on_demand.note(served)
        else:
            await self._on_demand.load(name)
            if self._find(name) is None:
                raise _unknown(name, [*(one.id for one in self.models), *await self.others()])

    def of(self, fields: Fields) -> Served:
        """The model that a request names; raises `ApiError` saying which there are."""
        name = fields.text("model")
        models = self.models
        if not models:
            raise ApiError("no model is loaded yet; try again later", 503, headers={"retry-after": "5"})
        return models[0] if name is None else self.named(name)

    def named(self, name: str) -> Served:
        """The model of this name."""
        served = self._find(name)
        if served is None:
            raise _unknown(name, [one.id for one in self.models])
        return served

    def _find(self, name: str) -> Served | None:
        wanted = name.casefold()
        for served in self.models:
            listed = {one.casefold() for one in (served.id, *served.aliases)}
            if wanted in listed | served.names:
                return served
        return None


def _unknown(name: str, names: Sequence[str]) -> ApiError:
    there = ", ".join(names) or "none"
    words = f"model: {name[:100]!r} is not served here; there is {there}"
    return ApiError(words, 404, field="model", code="model_not_found")
