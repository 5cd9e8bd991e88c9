"""A model of an endpoint as chats see it: what only the engine here has is absent."""

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.endpoints.answer import prompt_of
from app.endpoints.generation import RemoteGeneration
from app.endpoints.listed import Listed
from app.endpoints.payload import SUPPORT, body_of
from app.models.backends.port import Asked, ChatRequest
from app.models.endpoint_keys import endpoint_key
from app.models.recommended import Recommended
from app.settings.servers.endpoints import Endpoint
from engine import RequestError, SamplingParams, ThinkingSupport


class RemoteModel:
    """Sends chats as they are."""

    local = None
    counter = None
    kind = "remote"
    warnings: tuple[str, ...] = ()
    thinking_support: ThinkingSupport = SUPPORT

    def __init__(
        self,
        endpoint: Endpoint,
        listed: Listed,
        ask: Callable[["RemoteModel", dict[str, Any]], RemoteGeneration],
        *,
        seen: bool,
    ) -> None:
        """ask: begins to send a request's body; seen: whether the server was asked about the model."""
        self.endpoint, self.listed, self.seen = endpoint, listed, seen
        self._ask = ask

    @property
    def path(self) -> Path:
        """What stands for it."""
        return endpoint_key(self.endpoint.name, self.listed.id)

    @property
    def name(self) -> str:
        """What its server calls it."""
        return self.listed.id

    @property
    def context_length(self) -> int | None:
        """Most tokens of one chat, where the server says so."""
        return self.listed.context_length

    @property
    def max_tokens(self) -> int | None:
        """The same."""
        return self.listed.context_length

    @property
    def continues(self) -> bool:
        """Whether its server goes on with an answer that has begun."""
        return self.listed.continues

    def recommended(self) -> Recommended:
        """Return nothing: what nobody chose is left to the server."""
        return Recommended()

    def chat(self, request: ChatRequest) -> Asked:
        """Begin to ask; what goes wrong comes as the answer's end."""
        if request.beginning.text and not self.continues:
            raise RequestError(f"{self.endpoint.name} does not go on with an answer that has begun.")

        def again(sampling: SamplingParams, chosen: Collection[str]) -> Asked:
            return self.chat(replace(request, sampling=sampling, chosen=chosen))

        return Asked(
            self._ask(self, body_of(self.endpoint, self.name, request)),
            prompt_of(),
            SUPPORT.fitted(request.thinking),
            SUPPORT.lacks(request.thinking),
            max_tokens=request.max_tokens,
            again=again,
            knows_tools=bool(request.tools),
        )
