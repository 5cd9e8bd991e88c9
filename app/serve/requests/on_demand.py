"""Models that are loaded when a request names them: so many and no more, one at a time."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from app.models.found import FoundModel
from app.serve.http.errors import ApiError
from app.serve.requests.naming import names_of
from app.serve.requests.served import Served
from engine import EngineError

_RETRY = {"retry-after": "5"}


@dataclass(frozen=True, slots=True)
class ModelShelf:
    """What an engine does with models; every call may take long."""

    listed: Callable[[], Sequence[FoundModel]]
    """Those that could be loaded."""
    load: Callable[[FoundModel], Served]
    unload: Callable[[Served], None]
    answering: Callable[[Served], bool]
    """Whether a request of it runs or waits; at once."""


class OnDemand:
    """Of one event loop."""

    def __init__(self, shelf: ModelShelf, most: int) -> None:
        """most: models that may be loaded so at once."""
        self._shelf, self._most = shelf, most
        self._loaded: dict[str, Served] = {}
        """By their names in lists."""
        self._used: dict[str, float] = {}
        self._loading: str | None = None

    @property
    def loaded(self) -> Sequence[Served]:
        """Those that were loaded so."""
        return list(self._loaded.values())

    async def listed(self) -> Mapping[str, FoundModel]:
        """What could be loaded, by the names that lists show."""
        found = await asyncio.to_thread(self._shelf.listed)
        return {model.title: model for model in found if model.summary.problem is None}

    def note(self, served: Served) -> None:
        """Take note that a model is asked for: who was not for longest makes room."""
        self._used[served.id] = time.monotonic()

    async def load(self, name: str) -> None:
        """Load the model of this name, if lists show one; raises `ApiError` while another one is loaded."""
        wanted = name.casefold()
        found = next(
            (one for one in (await self.listed()).values() if wanted in names_of(one.path, one)), None
        )
        if found is None:
            return
        if self._loading is not None:
            raise ApiError(f"{self._loading} is being loaded; try again soon", 503, headers=_RETRY)
        self._loading = found.title
        try:
            await self._make_room()
            served = await asyncio.to_thread(self._shelf.load, found)
        except EngineError as error:
            cause = str(error).replace(str(found.path), found.title).replace(f"{found.path.parent}/", "")
            raise ApiError(f"model: {found.title} cannot be loaded: {cause}", 503, field="model") from error
        finally:
            self._loading = None
        self._loaded[served.id] = served
        self.note(served)

    async def _make_room(self) -> None:
        while len(self._loaded) >= self._most:
            idle = [served for served in self.loaded if not self._shelf.answering(served)]
            if not idle:
                raise ApiError(
                    f"as many models as may be loaded on demand ({self._most}) are answering; try again soon",
                    503,
                    headers=_RETRY,
                )
            oldest = min(idle, key=lambda served: self._used[served.id])
            del self._loaded[oldest.id], self._used[oldest.id]
            await asyncio.to_thread(self._shelf.unload, oldest)
