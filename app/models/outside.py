"""Answers that the engine writes for other programs, told apart from those of tabs by their label."""

from engine import EngineStats

_OUTSIDE = "outside: "


def outside_label(kind: str) -> str:
    """The label of a request of another program."""
    return _OUTSIDE + kind


def count_outside(stats: EngineStats) -> int:
    """How many requests of other programs run or wait."""
    return sum(sequence.label.startswith(_OUTSIDE) for sequence in stats.sequences)
