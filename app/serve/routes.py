"""The application: every path, what it reads and how it answers, with all errors in its protocol's shape."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.serve.http.errors import ApiError, JsonResponse, error_response
from app.serve.http.fields import Fields
from app.serve.http.limits import Access, BodyRoom, HttpLimits, read_object
from app.serve.http.streams import ClientGone, EventStream, unless_gone
from app.serve.metrics import CONTENT_TYPE
from app.serve.protocols import tokens
from app.serve.protocols.anthropic import AnthropicMessages
from app.serve.protocols.chat import ChatCompletions
from app.serve.protocols.completions import Completions
from app.serve.protocols.responses import Responses
from app.serve.requests.answers import Answers, Whole
from app.serve.requests.desk import Asked, Desk
from app.serve.requests.served import Served
from engine import EngineError

log = logging.getLogger(__name__)

_GONE = 499
Handler = Callable[[Request], Awaitable[Response]]


class Exchange(Protocol):
    """One request of some protocol, and how its answers look there."""

    asked: Asked
    stream: bool

    def body(self, answers: Answers, found: list[Whole], /) -> dict[str, Any]:
        """The whole answer."""

    def events(self, answers: Answers, /) -> AsyncIterator[bytes]:
        """The answer piece by piece."""


class Routes:
    """What is served at each path."""

    def __init__(self, desk: Desk, limits: HttpLimits, access: Access) -> None:
        self._desk, self._limits, self._access = desk, limits, access
        self._room = BodyRoom(limits)

    def application(self) -> Starlette:
        """The ASGI application."""
        posts: dict[str, Handler] = {
            "/v1/chat/completions": self._answering(ChatCompletions),
            "/v1/completions": self._answering(Completions),
            "/v1/responses": self._answering(Responses),
            "/v1/messages": self._answering(AnthropicMessages),
            "/v1/messages/count_tokens": self._count_tokens,
            "/v1/embeddings": self._embeddings,
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
        }
        gets: dict[str, Handler] = {
            "/v1/models": self._models,
            "/v1/models/{name:path}": self._model,
            "/health": self._health,
            "/metrics": self._metrics,
        }
        routes = [
            *(Route(path, self._guarded(handler), methods=["POST"]) for path, handler in posts.items()),
            *(Route(path, self._guarded(handler), methods=["GET"]) for path, handler in gets.items()),
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: self._no_route})

    def _guarded(self, handler: Handler) -> Handler:
        """The handler for those who may ask; what goes wrong is said in the protocol's shape."""

        async def guarded(request: Request) -> Response:
            try:
                self._access.check(request)
                return await handler(request)
            except ApiError as error:
                return self._refused(request, error)
            except ClientGone:
                return Response(status_code=_GONE)
            except EngineError:
                log.exception("%s", request.scope["path"])
                return self._refused(request, ApiError("the engine failed; the server's log says why", 500))
            except Exception:
                log.exception("%s", request.scope["path"])
                return self._refused(request, ApiError("the server failed; its log says why", 500))

        return guarded

    def _refused(self, request: Request, error: ApiError) -> Response:
        self._desk.refused(request.scope["path"], error.status, error.message)
        return error_response(request.scope["path"], error)

    def _answering(self, protocol: Callable[[Fields, Desk], Exchange]) -> Handler:
        async def answer(request: Request) -> Response:
            exchange = protocol(await self._read(request), self._desk)
            answers = await self._desk.answers(exchange.asked)
            if exchange.stream:
                return EventStream(exchange.events(answers), answers.close, self._limits.write_seconds)
            try:
                found = await unless_gone(request.receive, answers.whole())
            finally:
                answers.close()
            return JsonResponse(exchange.body(answers, found))

        return answer

    async def _read(self, request: Request) -> Fields:
        """A request's fields, its model being loaded where that is allowed."""
        fields = await read_object(request, self._limits, self._room)
        await self._desk.models.prepare(fields)
        return fields

    async def _count_tokens(self, request: Request) -> Response:
        fields = await self._read(request)
        asked = AnthropicMessages(fields, self._desk, count_only=True).asked
        return JsonResponse({"input_tokens": await tokens.count(asked)})

    async def _tokenize(self, request: Request) -> Response:
        return JsonResponse(await tokens.tokenize(await self._read(request), self._desk))

    async def _detokenize(self, request: Request) -> Response:
        return JsonResponse(await tokens.detokenize(await self._read(request), self._desk))

    async def _embeddings(self, _request: Request) -> Response:
        raise ApiError("embeddings are not served: the models here write text", code="unsupported")

    async def _models(self, _request: Request) -> Response:
        models = self._desk.models
        data = [_shown(served, name) for served in models.models for name in (served.id, *served.aliases)]
        data += [_named(name) for name in await models.others()]
        return JsonResponse({"object": "list", "data": data, "has_more": False})

    async def _model(self, request: Request) -> Response:
        served = self._desk.models.named(request.path_params["name"])
        return JsonResponse(_shown(served, served.id))

    async def _health(self, _request: Request) -> Response:
        if self._desk.metrics.failure:
            raise ApiError("the device failed and computes nothing more; restart the server", 503)
        return JsonResponse({"status": "ok"})

    async def _metrics(self, _request: Request) -> Response:
        return Response(self._desk.metrics.text(), media_type=CONTENT_TYPE)

    async def _no_route(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        try:
            self._access.check(request)
        except ApiError as refusal:
            return self._refused(request, refusal)
        words = "there is nothing at this path" if error.status_code == 404 else error.detail
        return self._refused(request, ApiError(words, error.status_code, headers=error.headers))


def _shown(served: Served, name: str) -> dict[str, Any]:
    """A model as lists show it, to clients of OpenAI's protocol and of Anthropic's."""
    return {**_named(name), "created": served.created, "max_model_len": served.model.max_tokens}


def _named(name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "created": 0,
        "owned_by": "tui-chat",
        "display_name": name,
    }
