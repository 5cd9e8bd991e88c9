"""Asking one server: which models it has, and for answers as they are written."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx

from app.endpoints.answer import AnswerReader
from app.endpoints.errors import EndpointError, one_line, redirect_error, status_error, words_of
from app.endpoints.events import EventReader, EventTooLongError
from app.endpoints.generation import RemoteGeneration
from app.endpoints.keys import KeySource
from app.endpoints.listed import Listed, listed_models
from app.endpoints.transport import transport_error
from app.settings.servers.endpoints import Endpoint
from app.transfer.errors import retry_after

_CONNECT_SECONDS, _LIST_SECONDS, _SILENT_SECONDS = 10.0, 10.0, 900.0
"""A long prompt may be read for minutes before the first token of its answer."""
_MOST_ERROR, _MOST_LIST = 1 << 16, 16 << 20
_HERE = ("localhost", "127.0.0.1", "::1")


class EndpointClient:
    """Lives on one event loop. The key goes to the endpoint's own address alone, and into no message."""

    def __init__(self, endpoint: Endpoint, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """transport: another way to the server than the network."""
        self.endpoint = endpoint
        self._keys = KeySource(endpoint)
        here = urlsplit(endpoint.url).hostname in _HERE
        self._http = httpx.AsyncClient(
            transport=transport,
            timeout=httpx.Timeout(_SILENT_SECONDS, connect=_CONNECT_SECONDS),
            headers={"User-Agent": "tui-chat", "Accept-Encoding": "identity"},
            # Certificates take a third of a second to read, and a proxy is for servers elsewhere.
            verify=not here or endpoint.url.startswith("https:"),
            trust_env=not here,
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._http.aclose()

    async def models(self) -> list[Listed]:
        """Ask which models there are; raises `EndpointError`."""
        # Before the clock runs: somebody may be asked for the keyring's password.
        await self._keys.key()
        try:
            async with asyncio.timeout(_LIST_SECONDS), self._asked("GET", "/models") as response:
                found = listed_models(_json(await _read(response, _MOST_LIST)))
        except (TimeoutError, httpx.HTTPError) as error:
            raise EndpointError(f"{self.endpoint.name} does not answer at {self.endpoint.url}") from error
        if found is None:
            raise EndpointError(f"{self.endpoint.name} lists no models at {self.endpoint.url}/models")
        return found

    async def answer(
        self, body: Mapping[str, Any], reader: AnswerReader, generation: RemoteGeneration
    ) -> None:
        """Ask for an answer and carry it over until it has ended; raises `EndpointError`."""
        name = self.endpoint.name
        events = EventReader()
        async with self._asked("POST", "/chat/completions", body) as response:
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "text/event-stream":
                said = f"answers with {one_line(kind)[:80] or 'something'}, and not with a stream of events"
                raise EndpointError(f"{name} {said}: is endpoints.{name}.url right?")
            try:
                async for chunk in response.aiter_bytes():
                    self._carry(events.feed(chunk), reader, generation)
                self._carry(events.end(), reader, generation)
            except EventTooLongError:
                raise EndpointError(f"{name} sent an event without an end; the answer ends here") from None
            except httpx.HTTPError as error:
                # Some servers close without a last word once all is said.
                if not reader.ended:
                    raise transport_error(self.endpoint, error) from error
        if not reader.ended:
            raise EndpointError(f"the connection to {name} was lost", again=True)

    def _carry(self, found: Any, reader: AnswerReader, generation: RemoteGeneration) -> None:
        for data in found:
            for delta in reader.take(data):
                generation.put(delta)

    @asynccontextmanager
    async def _asked(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> AsyncIterator[httpx.Response]:
        """The answer to a request, its status checked; its body is still to be read."""
        key = await self._keys.key()
        request = self._http.build_request(
            method,
            self.endpoint.url + path,
            headers={"Authorization": f"Bearer {key}"} if key else None,
            json=body,
        )
        try:
            response = await self._http.send(request, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise transport_error(self.endpoint, error) from error
        try:
            if response.is_redirect:
                raise redirect_error(self.endpoint, response.headers.get("location", ""))
            if not response.is_success:
                raise await self._refused(response, key, body or {})
            yield response
        finally:
            await response.aclose()

    async def _refused(self, response: httpx.Response, key: str, body: Mapping[str, Any]) -> EndpointError:
        if response.status_code in (401, 403):
            self._keys.refused()
        try:
            content = await _read(response, _MOST_ERROR)
        except (EndpointError, httpx.HTTPError):
            content = b""
        said = one_line(words_of(_json(content)), key)
        if "tools" in body and "tool" in said.lower():
            said = f"{said.rstrip('.')}; the tools of this chat are switched off with /tools"
        wait = retry_after(response.headers.get("retry-after"))
        return status_error(self.endpoint, response.status_code, said, str(body.get("model", "")), wait)


async def _read(response: httpx.Response, most: int) -> bytes:
    content = bytearray()
    async for chunk in response.aiter_bytes():
        content += chunk
        if len(content) > most:
            raise EndpointError(f"{response.url.host} sends more than an answer can be")
    return bytes(content)


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None
