"""The models that are served, and what clients may call them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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


class ServedModels:
    """All of them, the first one being meant where a request names none."""

    def __init__(self, loaded: Callable[[], Sequence[Served]]) -> None:
        self._loaded = loaded

    @property
    def models(self) -> Sequence[Served]:
        """Those that are loaded now."""
        return self._loaded()

    def of(self, fields: Fields) -> Served:
        """The model that a request names; raises `ApiError` saying which there are."""
        name = fields.text("model")
        models = self.models
        if not models:
            raise ApiError("no model is loaded yet; try again later", 503, headers={"retry-after": "5"})
        return models[0] if name is None else self.named(name)

    def named(self, name: str) -> Served:
        """The model of this name."""
        wanted, models = name.casefold(), self.models
        for served in models:
            listed = {one.casefold() for one in (served.id, *served.aliases)}
            if wanted in listed | served.names:
                return served
        there = ", ".join(served.id for served in models) or "none"
        raise ApiError(
            f"model: {name[:100]!r} is not served here; there is {there}",
            404,
            field="model",
            code="model_not_found",
        )
