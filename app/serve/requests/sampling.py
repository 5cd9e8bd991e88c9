"""From a request's fields to how the engine samples; what it leaves out is as the model is used elsewhere."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.serve.http.fields import Fields
from engine import RequestError, SamplingParams

MOST_CHOICES = 128
_NUMBERS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "min_p": "min_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repetition_penalty",
    "repeat_penalty": "repetition_penalty",
}
"""By the names of requests, llama.cpp's too: those of `SamplingParams`."""
_SEEDS = 1 << 64
# Every token of the answer is compared with these, on the thread that serves all others too.
_MOST_STOPS, _MOST_STOP_LETTERS, _MOST_BIASES = 64, 10_000, 1024


@dataclass(frozen=True, slots=True)
class Sampling:
    """How all answers to one request are written."""

    params: SamplingParams
    max_tokens: int | None = None
    """None: to the context's end."""
    stop: tuple[str, ...] = ()
    choices: int = 1
    ignore_eog: bool = False
    top_logprobs: int | None = None
    """How many tokens are told beside each one, with their log-probabilities; None: of none."""

    def of_choice(self, index: int) -> SamplingParams:
        """Choices of one seed are not all the same."""
        seed = self.params.seed
        return self.params if seed is None else replace(self.params, seed=(seed + index) % _SEEDS)


def read_sampling(
    fields: Fields,
    usual: SamplingParams,
    limits: tuple[str, ...],
    *,
    stop: str = "stop",
    top_logprobs: int | None = None,
) -> Sampling:
    """Read a request's sampling; raises `ApiError` naming a field that cannot be served.

    limits: the names of the field for the most tokens, the first that is there counts; stop: that of the
    field for stop strings.
    """
    changed: dict[str, Any] = {}
    for name, ours in _NUMBERS.items():
        if fields.has(name):
            changed[ours] = _checked(fields, name, ours, fields.number(name))
    if fields.has("top_k"):
        # Less than nothing means all, as it does in other servers.
        changed["top_k"] = _checked(fields, "top_k", "top_k", max(0, fields.whole("top_k") or 0))
    if (seed := fields.whole("seed")) is not None:
        changed["seed"] = seed % _SEEDS
    if fields.has("logit_bias"):
        changed["logit_bias"] = _bias(fields)
    return Sampling(
        replace(usual, **changed),
        _limit(fields, limits),
        _stop(fields, stop),
        _choices(fields),
        bool(fields.flag("ignore_eos")),
        top_logprobs,
    )


def _checked(fields: Fields, name: str, ours: str, value: Any) -> Any:
    try:
        SamplingParams(**{ours: value})
    except RequestError as error:
        raise fields.refuse(name, str(error).partition(": ")[2]) from error
    return value


def _bias(fields: Fields) -> Mapping[int, float]:
    given = fields.inner("logit_bias")
    assert given is not None
    if len(given.values) > _MOST_BIASES:
        raise fields.refuse("logit_bias", f"at most {_MOST_BIASES} tokens are served")
    bias: dict[int, float] = {}
    for key in given.values:
        if not (key.isascii() and key.isdecimal() and len(key) < 11):
            raise given.refuse(key, "is no token id")
        bias[int(key)] = given.number(key) or 0.0
    return _checked(fields, "logit_bias", "logit_bias", bias)


def _limit(fields: Fields, names: tuple[str, ...]) -> int | None:
    for name in names:
        limit = fields.whole(name)
        if limit is not None:
            if limit < 1:
                raise fields.refuse(name, f"{limit} is not at least 1")
            return limit
    return None


def _stop(fields: Fields, name: str) -> tuple[str, ...]:
    value = fields.get(name)
    stops = [value] if isinstance(value, str) else fields.many(name) or []
    if not all(isinstance(one, str) and one for one in stops):
        raise fields.refuse(name, "must be strings that are not empty")
    if len(stops) > _MOST_STOPS or sum(map(len, stops)) > _MOST_STOP_LETTERS:
        most = f"at most {_MOST_STOPS} strings of {_MOST_STOP_LETTERS} letters together are served"
        raise fields.refuse(name, most)
    return tuple(stops)


def _choices(fields: Fields) -> int:
    choices = fields.whole("n")
    if choices is not None and not 1 <= choices <= MOST_CHOICES:
        raise fields.refuse("n", f"{choices} is not between 1 and {MOST_CHOICES}")
    return choices or 1
