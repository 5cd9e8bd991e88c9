"""Served models whose device is lost: another one loads them, and who asks meanwhile is told to come back."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from app.serve.http.errors import ApiError
from app.serve.requests.port import ServedModel
from app.serve.requests.served import Served

log = logging.getLogger(__name__)

_RETRY = {"retry-after": "5"}


class Moving:
    """Of one event loop."""

    def __init__(
        self, lost: Callable[[ServedModel], bool], load: Callable[[ServedModel], ServedModel]
    ) -> None:
        """lost: whether another device could load a model; load: has it do so, which may take long."""
        self._lost, self._load = lost, load
        self._moved: dict[str, ServedModel] = {}
        """By the names of what is served."""
        self._loads: dict[str, asyncio.Task[None]] = {}

    def now(self, served: Served) -> Served:
        """It with its model of now."""
        model = self._moved.get(served.id)
        return served if model is None else replace(served, model=model)

    def check(self, served: Served) -> None:
        """Raise `ApiError` for a model that is on its way to another device, beginning that where need be."""
        if not self._lost(served.model):
            return
        if served.id not in self._loads:
            self._loads[served.id] = asyncio.get_running_loop().create_task(self._move(served))
        raise ApiError(
            f"{served.id}: the device that had it failed; another one loads it, try again soon",
            503,
            headers=_RETRY,
        )

    async def _move(self, served: Served) -> None:
        try:
            self._moved[served.id] = await asyncio.to_thread(self._load, served.model)
        except Exception:
            log.exception("%s cannot be loaded on another device", served.id)
        finally:
            del self._loads[served.id]
