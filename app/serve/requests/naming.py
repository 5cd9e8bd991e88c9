"""What a model is called by a server: any name that lists show."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app.models.builtin import BUILTIN_NAME, is_builtin, model_name, model_title
from app.models.found import FoundModel
from app.models.recommended import recommended_for
from app.models.stores.ollama import weights_of
from app.serve.requests.served import Served
from app.settings.file import SamplingSettings

if TYPE_CHECKING:
    from app.serve.requests.port import ServedModel


def names_of(path: Path, found: FoundModel | None = None, also: str = "") -> frozenset[str]:
    """All names of a file's model, in small letters."""
    own = BUILTIN_NAME if is_builtin(path) else model_name(path)
    file = weights_of(path)
    names = {own, file.name, file.stem, model_title(path), also or own}
    if found is not None:
        names |= {found.title, found.summary.name, *found.names}
    return frozenset(name.casefold() for name in names)


def served_model(
    model: "ServedModel",
    sampling: SamplingSettings,
    found: FoundModel | None = None,
    aliases: Sequence[str] = (),
) -> Served:
    """A loaded model with its names, and the sampling that it is used with elsewhere.

    found: where its file is listed, None where it is not. Reads the file's header.
    """
    path = found.path if found is not None else model.path
    own = BUILTIN_NAME if is_builtin(path) else model_name(path)
    if found is not None:
        own = found.title
    advice = recommended_for(path)
    usual = advice.applied(sampling.params(), sampling.chosen)
    limit = advice.limit(sampling.token_limit, sampling.chosen)
    others = names_of(path, found, model.name)
    return Served(model, own, others, usual, tuple(aliases), limit)
