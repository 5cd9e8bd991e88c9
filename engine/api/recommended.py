"""Sampling that somebody recommends for a model: what of it can be used, and a word on the rest."""

from collections.abc import Mapping
from numbers import Real

from engine.api.errors import RequestError
from engine.api.request import SamplingParams

_DECIMALS = 6
"""A float32 is written with more than its makers wrote."""


def check_sampling(
    given: Mapping[str, object], names: Mapping[str, str]
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return the values that can be used, by the names of `SamplingParams`, and why others cannot.

    `max_tokens`, the longest answer, is one of them.

    names: what each key of `given` is called there; a value of another key is not used unless it is 0.
    """
    used: dict[str, float] = {}
    ignored: list[str] = []
    for key, value in given.items():
        name = names.get(key)
        try:
            if name is None:
                ignored += [f"{key} has no use here"] if value else []
            else:
                used[name] = _checked(name, value)
        except RequestError as error:
            ignored.append(f"{error}")
    return used, tuple(ignored)


def _checked(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise RequestError(f"{name}: {str(value)[:20]!r} is not a number")
    number = round(float(value), _DECIMALS)
    if name == "max_tokens":
        return _limit(number)
    whole = name == "top_k" and number.is_integer()
    checked: float = getattr(SamplingParams(**{name: int(number) if whole else number}), name)  # type: ignore[arg-type]
    return checked


def _limit(number: float) -> float:
    if number < 1 or not number.is_integer():
        raise RequestError(f"max_tokens: {number:g} is not a whole number of at least 1")
    return number
