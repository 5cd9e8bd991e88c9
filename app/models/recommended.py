"""What a model's makers recommend, sampling and a system prompt: in the file itself, or in what Ollama
keeps beside it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from app.models.stores.ollama import details_of, weights_of
from engine import SamplingParams

FROM_FILE, FROM_OLLAMA = "the file", "Ollama"
_OLLAMA = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repetition_penalty",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
}
"""By Ollama's names: those of `SamplingParams`."""
_OLLAMA_UNUSED = ("mirostat",)
LIMIT = "max_tokens"
"""The longest answer, which is no part of `SamplingParams`."""
_MOST_FILES = 256


@dataclass(frozen=True, slots=True)
class Recommended:
    """What is recommended for one model, by the names of `SamplingParams` and `LIMIT`."""

    values: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    """Who recommends each value."""
    ignored: Sequence[str] = ()
    """Why some of what is recommended cannot be used, a few words each."""
    system: str = ""
    """The system prompt that Ollama keeps for a chat that has none."""

    def applied(self, sampling: SamplingParams, chosen: Collection[str]) -> SamplingParams:
        """Put the recommended values in place of those that nobody has chosen."""
        changed = {name: value for name, value in self.values.items() if name not in (*chosen, LIMIT)}
        return replace(sampling, **changed)  # type: ignore[arg-type]

    def limit(self, max_tokens: int | None, chosen: Collection[str]) -> int | None:
        """Return the most tokens of an answer: what is set or chosen, else what is recommended."""
        if max_tokens is not None or LIMIT in chosen or LIMIT not in self.values:
            return max_tokens
        return int(self.values[LIMIT])

    def text(self, name: str) -> str:
        """Such as `temperature 0.6, from the file`."""
        return f"{name.replace('_', ' ')} {self.values[name]:g}, from {self.sources[name]}"


def recommended(
    of_file: Mapping[str, float], ignored: Sequence[str], details: Mapping[str, Any]
) -> Recommended:
    """Put together what a file recommends and what Ollama keeps beside it, which comes first.

    details: its `parameters` and `system`, as far as it has them.
    """
    from engine import check_sampling

    parameters = details.get("parameters", {})
    given = {name: parameters.get(name) for name in (*_OLLAMA, *_OLLAMA_UNUSED)}
    kept, more = check_sampling({name: value for name, value in given.items() if value is not None}, _OLLAMA)
    sources = dict.fromkeys(of_file, FROM_FILE) | dict.fromkeys(kept, FROM_OLLAMA)
    return Recommended({**of_file, **kept}, sources, (*ignored, *more), details.get("system", ""))


def recommended_for(path: Path) -> Recommended:
    """Read what is recommended for a model file, or under a name of Ollama; nothing for what is not there.

    Reads the file's header the first time: call off the UI.
    """
    try:
        file = weights_of(path)
        status = file.stat()
    except (OSError, ValueError):
        return Recommended()
    return recommended(*_of_file(file, status.st_mtime_ns, status.st_size), details_of(path))


@lru_cache(maxsize=_MOST_FILES)
def _of_file(path: Path, _time: int, _size: int) -> tuple[Mapping[str, float], Sequence[str]]:
    from engine import recommended_sampling

    return recommended_sampling(path)
