"""The models that a server lists, and what it says of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_CONTEXT = (
    "max_model_len",
    "loaded_context_length",
    "context_length",
    "context_window",
    "max_context_length",
)
"""vLLM, SGLang and this program's own server; LM Studio; OpenRouter; Groq; LM Studio."""
_META = ("n_ctx", "n_ctx_train")
"""llama-server's, under `meta`."""
_CONTINUE = frozenset(("vllm", "sglang", "llamacpp"))
"""Owners by which servers give themselves away that go on with a message of the assistant."""
_MOST, _LONGEST_NAME, _LONGEST_CONTEXT = 10_000, 300, 1 << 40


@dataclass(frozen=True, slots=True)
class Listed:
    """One model of a server."""

    id: str
    context_length: int | None = None
    """None: the server does not say."""
    owner: str = ""

    @property
    def continues(self) -> bool:
        """Whether the server goes on with an answer that has begun."""
        return self.owner in _CONTINUE


def listed_models(body: Any) -> list[Listed] | None:
    """Read a server's list; None where it is none."""
    rows = body.get("data") if isinstance(body, Mapping) else None
    if not isinstance(rows, list):
        return None
    found = [_listed(row) for row in rows[:_MOST] if isinstance(row, Mapping)]
    return [model for model in found if model.id.isprintable() and 0 < len(model.id) <= _LONGEST_NAME]


def _listed(row: Mapping[str, Any]) -> Listed:
    name, owner, meta = row.get("id"), row.get("owned_by"), row.get("meta")
    said = [row.get(key) for key in _CONTEXT]
    if isinstance(meta, Mapping):
        said += [meta.get(key) for key in _META]
    context = next((value for value in said if type(value) is int and 0 < value < _LONGEST_CONTEXT), None)
    return Listed(name if isinstance(name, str) else "", context, owner if isinstance(owner, str) else "")
