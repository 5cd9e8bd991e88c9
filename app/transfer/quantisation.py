"""Which of a repository's files are one model, and which quantisation to take."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath

from app.settings.words import size_text
from app.transfer.errors import FetchError

_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_LABEL = re.compile(
    r"(?:^|[-._/])(?P<label>(?:UD-)?(?:I?Q\d(?:_[A-Z0-9]+)*|TQ\d_\d|MXFP4(?:_MOE)?|BF16|F16|F32))(?=[-._]|$)",
    re.IGNORECASE,
)
_PREFERRED = (
    *("Q4_K_M", "UD-Q4_K_XL", "MXFP4", "MXFP4_MOE", "Q4_K_S", "Q4_K_L", "IQ4_NL", "IQ4_XS", "Q4_1", "Q4_0"),
    *("Q5_K_M", "Q5_K_S", "Q6_K", "Q8_0", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K"),
)
"""Four bits first, where answers have hardly lost anything and a file is small; more where there are none,
fewer where four do not fit."""
_SMALL = 2 * 10**9
"""Under this size eight bits are taken: small models lose more, and gain nothing by being smaller still."""
_BESIDE = 1.15
"""What a model takes beside its file, a context of some thousand tokens, as a factor."""
_NOT_MODELS = ("mmproj", "imatrix", "mtp-")


@dataclass(frozen=True, slots=True)
class Choice:
    """One quantisation of a model: its files in order, and how many bytes they are together."""

    label: str
    paths: tuple[str, ...]
    size: int
    notes: tuple[str, ...] = ()

    def fits(self, free: int) -> bool:
        """Whether it can be loaded in so many bytes, and a context beside it."""
        return self.size * _BESIDE <= free


def choices(sizes: Mapping[str, int]) -> list[Choice]:
    """The models among a repository's files, from path to size; parts of a split one together."""
    groups: dict[str, list[str]] = {}
    for path in sorted(sizes):
        if path.lower().endswith(".gguf") and not PurePath(path).name.lower().startswith(_NOT_MODELS):
            split = _SPLIT.fullmatch(path)
            groups.setdefault(split["stem"] if split else path[: -len(".gguf")], []).append(path)
    labels = Counter(_label(stem) for stem in groups)
    return [
        # Two files of one label are told apart by their names.
        Choice(
            _label(stem) if labels[_label(stem)] == 1 else PurePath(paths[0]).name,
            tuple(paths),
            sum(sizes[path] for path in paths),
        )
        for stem, paths in groups.items()
        if _whole(paths)
    ]


def pick(found: list[Choice], wanted: str, free: int | None, name: str) -> Choice:
    """The quantisation that is named, by its label or by its file, or else the best one that fits.

    Raises `FetchError` that says which there are.
    """
    if not found:
        raise FetchError(f"{name} holds no GGUF files; its name often ends in -GGUF where there are some")
    if wanted:
        return _named(found, wanted, name)
    ranked = sorted(found, key=_rank)
    fitting = [choice for choice in ranked if free is None or choice.fits(free)]
    if fitting:
        chosen, why = fitting[0], "chosen"
    else:
        chosen, why = min(found, key=lambda choice: choice.size), "the smallest; none fits into memory"
    if len(found) == 1 and fitting:
        return chosen
    others = ", ".join(
        f"{choice.label} {size_text(choice.size)}" for choice in ranked if choice is not chosen
    )
    note = f"{chosen.label}, {size_text(chosen.size)}, {why}" + (
        f"; there are also {others}" if others else ""
    )
    return Choice(chosen.label, chosen.paths, chosen.size, (note,))


def with_a_smaller(chosen: Choice, found: list[Choice], fits: Callable[[str], bool], name: str) -> Choice:
    """A choice that does not fit with a note of the largest one of the repository that does."""
    if fits(chosen.label):
        return chosen
    for choice in sorted(found, key=lambda choice: -choice.size):
        if choice.size < chosen.size and fits(choice.label):
            said = f"{chosen.label} does not fit; {choice.label}, {size_text(choice.size)}, does"
            return replace(chosen, notes=(*chosen.notes, f"{said}: {name}:{choice.label}"))
    return chosen


def _named(found: list[Choice], wanted: str, name: str) -> Choice:
    folded = wanted.casefold()
    for choice in found:
        files = {PurePath(path).name.casefold() for path in choice.paths}
        if choice.label.casefold() == folded or folded in files:
            return choice
    raise FetchError(f"{name} has no {wanted}; it has {_labels(found)}")


def _rank(choice: Choice) -> tuple[int, int]:
    label = choice.label.upper()
    if label == "Q8_0" and choice.size < _SMALL:
        return -1, 0
    return (_PREFERRED.index(label), 0) if label in _PREFERRED else (len(_PREFERRED), choice.size)


def _label(stem: str) -> str:
    """The quantisation in a file's name, the last one where a folder names it too; else the name."""
    found = [match["label"] for match in _LABEL.finditer(PurePath(stem).name)]
    return found[-1].upper() if found else PurePath(stem).name


def _whole(paths: list[str]) -> bool:
    split = [match for path in paths if (match := _SPLIT.fullmatch(path))]
    return not split or len(split) == int(split[0]["count"])


def _labels(found: Iterable[Choice]) -> str:
    return ", ".join(sorted({choice.label for choice in found}))
