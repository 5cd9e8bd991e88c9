"""What stands behind /fan: how often a message is answered at once, what differs, and the message."""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from app.settings.actions import FAN_FORMS

MOST = 9
"""Answers at once: a digit promotes one."""
USUAL = 4
_SEEDS = 1_000_000
_NUMBER = re.compile(r"-?(?:\d+\.?\d*|\.\d+)(?=[\s:,]|\Z)")
_WORD = re.compile(r"\S+")
_QUOTED = re.compile(r'"([^"]*)"|“([^”]*)”|„([^“”]*)[“”]')


class FanError(ValueError):
    """What was written is no wish for several answers; says what to write."""


@dataclass(frozen=True, slots=True)
class Variant:
    """What sets one of several answers apart; `model` is a name or path, None for the chat's own."""

    label: str
    sampling: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    system: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """Several answers to `message`; "" means the one being written, or the last one."""

    variants: tuple[Variant, ...]
    message: str = ""


def read_wish(text: str, fixed_seed: int | None = None) -> Wish:
    """Read what stands behind /fan; `FanError` says what is wrong.

    fixed_seed: the chat's seed, from which a mere number of answers counts on; None draws them.
    """
    text = text.lstrip()
    word = _WORD.match(text)
    name = word[0].rstrip(":").casefold() if word is not None else ""
    if name in _READERS and word is not None:
        end = word.end() - word[0].count(":")
        variants, rest = _READERS[name](text[end:])
    else:
        variants, rest = _counted(text, fixed_seed)
    if len(variants) > MOST:
        raise FanError(f"/fan: at most {MOST} answers are written at once, not {len(variants)}.")
    if len(variants) < 2:
        raise FanError(f"/fan {name}: give at least two, such as /fan {_example(name)}")
    return Wish(tuple(variants), _message(rest))


def _counted(text: str, fixed_seed: int | None) -> tuple[list[Variant], str]:
    if not text:
        return _seeded(_drawn(USUAL, fixed_seed)), ""
    found = re.match(r"\d+(?=[\s:]|\Z)", text)
    if found is None:
        known = ", ".join(f"/fan {form}" for form, _ in FAN_FORMS)
        raise FanError(f"/fan: {text.split()[0]!r} is not known; write {known}.")
    count = int(found[0])
    if not 2 <= count <= MOST:
        raise FanError(f"/fan {count}: write a number from 2 to {MOST}.")
    return _seeded(_drawn(count, fixed_seed)), text[found.end() :]


def _drawn(count: int, fixed_seed: int | None) -> Sequence[int]:
    if fixed_seed is not None:
        return range(fixed_seed, fixed_seed + count)
    return random.sample(range(_SEEDS), count)


def _seeded(seeds: Sequence[int]) -> list[Variant]:
    return [Variant(f"seed {seed}", {"seed": seed}) for seed in seeds]


def _seeds(text: str) -> tuple[list[Variant], str]:
    numbers, rest = _numbers(text)
    for number in numbers:
        if not number.isdecimal():
            raise FanError(f"/fan seeds: {number} is not a whole number from 0 on, such as /fan seeds 1 2 3")
    return _seeded([int(number) for number in numbers]), rest


def _temperatures(text: str) -> tuple[list[Variant], str]:
    numbers, rest = _numbers(text)
    values = [float(number) for number in numbers]
    for value in values:
        if not 0 <= value <= 100:
            raise FanError(f"/fan temperature: {value:g} is not between 0 and 100.")
    return [Variant(f"temperature {value:g}", {"temperature": value}) for value in values], rest


def _models(text: str) -> tuple[list[Variant], str]:
    """Names up to a line's end, or to a colon with a blank behind it: models have colons in their names."""
    names, colon, rest = text.partition("\n")
    cut = re.search(r":(?=\s|\Z)", names)
    if cut is not None:
        names, rest = names[: cut.start()], names[cut.end() :] + colon + rest
    return [Variant(name, model=name) for name in names.replace(",", " ").split()], rest


def _systems(text: str) -> tuple[list[Variant], str]:
    variants: list[Variant] = []
    while (found := _QUOTED.match(text.lstrip(" \t,"))) is not None:
        system = next(group for group in found.groups() if group is not None)
        variants.append(Variant(f"“{' '.join(system.split())}”", system=system))
        text = text.lstrip(" \t,")[found.end() :]
    if not variants:
        raise FanError(f"/fan system: write each prompt in quotation marks: /fan {_example('system')}")
    return variants, text


def _numbers(text: str) -> tuple[list[str], str]:
    """Take the numbers that a text begins with, on its first line."""
    numbers: list[str] = []
    while (found := _NUMBER.match(text.lstrip(" \t,"))) is not None:
        numbers.append(found[0])
        text = text.lstrip(" \t,")[found.end() :]
    return numbers, text


def _message(rest: str) -> str:
    return rest.strip().removeprefix(":").strip()


def _example(name: str) -> str:
    return next((form for form, _ in FAN_FORMS if form.startswith(name[:4])), FAN_FORMS[0][0])


_READERS: Mapping[str, Callable[[str], tuple[list[Variant], str]]] = {
    "seed": _seeds,
    "seeds": _seeds,
    "temperature": _temperatures,
    "temperatures": _temperatures,
    "model": _models,
    "models": _models,
    "system": _systems,
    "systems": _systems,
}
