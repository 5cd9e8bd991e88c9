"""The models that are served, and what clients may call them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from app.serve.http.errors import ApiError
from app.serve.http.fields import Fields
from app.serve.port import ServedModel
from engine import SamplingParams


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
    created: int = field(default_factory=lambda: int(time.time()))

    def without_paths(self, message: str) -> str:
        """An error's words as clients may read them."""
        path = self.model.path
        return message.replace(str(path), self.id).replace(f"{path.parent}/", "")


class ServedModels:
    """All of them, the first one being meant where a request names none."""

    def __init__(self, models: Sequence[Served]) -> None:
        self.models = tuple(models)

    def of(self, fields: Fields) -> Served:
        """The model that a request names; raises `ApiError` saying which there are."""
        name = fields.text("model")
        if name is None:
            return self.models[0]
        return self.named(name)

    def named(self, name: str) -> Served:
        """The model of this name."""
        wanted = name.casefold()
        for served in self.models:
            listed = {one.casefold() for one in (served.id, *served.aliases)}
            if wanted in listed | served.names:
                return served
        there = ", ".join(served.id for served in self.models)
        raise ApiError(
            f"model: {name[:100]!r} is not served here; there is {there}",
            404,
            field="model",
            code="model_not_found",
        )
