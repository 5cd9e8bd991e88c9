"""All endpoints: one thread, on whose event loop every connection lives."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from app.endpoints.answer import AnswerReader
from app.endpoints.errors import EndpointError
from app.endpoints.generation import RemoteGeneration
from app.endpoints.listed import Listed
from app.endpoints.model import RemoteModel
from app.models.endpoint_keys import endpoint_model
from app.settings.servers.endpoints import Endpoint

if TYPE_CHECKING:
    from app.endpoints.client import EndpointClient

log = logging.getLogger(__name__)
T = TypeVar("T")
Sleep = Callable[[float], Awaitable[None]]

_WAITS = (0.5, 1.0, 2.0, 4.0)
"""Seconds before each further try."""
_LONGEST_WAIT = 60.0
"""Who is to wait longer is told so instead."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The models of an endpoint, or why they are not known."""

    endpoint: Endpoint
    models: tuple[Listed, ...] = ()
    problem: str | None = None


class Endpoints:
    """Opens models, lists them and asks them. Its thread begins with the first wish."""

    def __init__(
        self,
        known: Mapping[str, Endpoint],
        client: "Callable[[Endpoint], EndpointClient] | None" = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """known: the endpoints by their names; client: makes what asks one."""
        self.known = known
        self._make_client = client
        self._sleep = sleep
        self._clients: dict[Endpoint, EndpointClient] = {}
        self._running: dict[RemoteGeneration, asyncio.Task[None]] = {}
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def open(self, path: Path, opened: Callable[[RemoteModel], None], failed: Callable[[str], None]) -> None:
        """Open the model that a key stands for; one of both is called, on the endpoints' thread."""

        def done(model: "Future[RemoteModel]") -> None:
            if model.cancelled():
                return
            if (error := model.exception()) is None:
                opened(model.result())
            elif isinstance(error, EndpointError):
                failed(str(error))
            else:
                log.error("opening %s", path, exc_info=error)
                failed(f"{path} could not be opened: {error}")

        self._start(self._opened(path)).add_done_callback(done)

    def opened(self, path: Path) -> RemoteModel:
        """Return the model that a key stands for; blocking. Raises `EndpointError`."""
        return self._start(self._opened(path)).result()

    def listing(self, endpoint: Endpoint) -> Listing:
        """Ask an endpoint for its models; blocking, for some seconds at most."""
        return self._start(self._listing(endpoint)).result()

    def close(self, timeout: float = 5.0) -> None:
        """Close all connections within `timeout` seconds."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None and self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop)
            thread.join(timeout)

    def _start(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop_running())

    def _loop_running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                run = partial(_run, self._loop)
                self._thread = threading.Thread(target=run, name="endpoints", daemon=True)
                self._thread.start()
            return self._loop

    async def _end(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in self._clients.values():
            await client.close()
        asyncio.get_running_loop().stop()

    def _client(self, endpoint: Endpoint) -> "EndpointClient":
        if endpoint not in self._clients:
            if self._make_client is None:
                # Not before the first frame.
                from app.endpoints.client import EndpointClient

                self._make_client = EndpointClient
            self._clients[endpoint] = self._make_client(endpoint)
        return self._clients[endpoint]

    async def _opened(self, path: Path) -> RemoteModel:
        """A model that is named opens although its server does not answer: it may do so later."""
        name, wanted = endpoint_model(path) or ("", "")
        endpoint = self.known.get(name)
        if endpoint is None:
            raise EndpointError(
                f"there is no endpoint {name}: name it in the settings, as [endpoints.{name}]"
            )
        wanted = wanted or next(iter(endpoint.models), "")
        try:
            models = await self._client(endpoint).models()
        except EndpointError:
            if not wanted:
                raise
            return RemoteModel(endpoint, Listed(wanted), self._ask, seen=False)
        if not wanted and not models:
            raise EndpointError(f"{name} has no models")
        listed = next((model for model in models if model.id == wanted), Listed(wanted))
        return RemoteModel(endpoint, listed if wanted else models[0], self._ask, seen=True)

    async def _listing(self, endpoint: Endpoint) -> Listing:
        try:
            found = await self._client(endpoint).models()
        except EndpointError as error:
            return Listing(endpoint, tuple(map(Listed, endpoint.models)), str(error))
        if not endpoint.models:
            return Listing(endpoint, tuple(found))
        by_id = {model.id: model for model in found}
        return Listing(endpoint, tuple(by_id.get(one, Listed(one)) for one in endpoint.models))

    def _ask(self, model: RemoteModel, body: dict[str, Any]) -> RemoteGeneration:
        loop = self._loop_running()
        generation = RemoteGeneration(self._stop)
        loop.call_soon_threadsafe(self._begin, model, body, generation)
        return generation

    def _begin(self, model: RemoteModel, body: dict[str, Any], generation: RemoteGeneration) -> None:
        reader = AnswerReader(model.endpoint.name)
        task = asyncio.get_running_loop().create_task(self._answer(model, body, reader, generation))
        self._running[generation] = task

        def over(_task: "asyncio.Task[None]") -> None:
            del self._running[generation]
            # A task that was cancelled before its first step has put nothing there.
            generation.put(reader.cancelled())

        task.add_done_callback(over)

    def _stop(self, generation: RemoteGeneration) -> None:
        # After `close` every answer has ended.
        with suppress(RuntimeError):
            self._loop_running().call_soon_threadsafe(self._cancel, generation)

    def _cancel(self, generation: RemoteGeneration) -> None:
        if (task := self._running.get(generation)) is not None:
            task.cancel()

    async def _answer(
        self, model: RemoteModel, body: dict[str, Any], reader: AnswerReader, generation: RemoteGeneration
    ) -> None:
        try:
            await self._tries(model, body, reader, generation)
            generation.calls = reader.calls
            generation.put(reader.finished())
        except asyncio.CancelledError:
            generation.put(reader.cancelled())
            return
        except EndpointError as error:
            generation.put(reader.broken_off(str(error)))
        except Exception as error:
            log.exception("an answer of %s", model.endpoint.name)
            generation.put(reader.broken_off(f"the app failed here ({type(error).__name__})"))
        if not model.seen:
            await self._look_again(model)

    async def _tries(
        self, model: RemoteModel, body: dict[str, Any], reader: AnswerReader, generation: RemoteGeneration
    ) -> None:
        """Ask until something has come; what has begun is never asked for twice."""
        waits = iter(_WAITS)
        while True:
            try:
                await self._client(model.endpoint).answer(body, reader, generation)
                return
            except EndpointError as error:
                wait = next(waits, None)
                if reader.begun or not error.again or wait is None or (error.wait or 0.0) > _LONGEST_WAIT:
                    raise
                wait = wait if error.wait is None else error.wait
                log.info("%s is asked again: %s", model.endpoint.name, error)
                generation.waits = f"asks again in {max(1, round(wait))} s"
                await self._sleep(wait)
                generation.waits = ""

    async def _look_again(self, model: RemoteModel) -> None:
        """Read what the server says of a model that was opened before it answered."""
        try:
            models = await self._client(model.endpoint).models()
        except EndpointError:
            return
        model.listed = next((one for one in models if one.id == model.name), model.listed)
        model.seen = True


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()
