"""How much a model is to think before it answers, and what of that its chat template understands."""

from dataclasses import dataclass
from typing import ClassVar

AUTO, ON, OFF = "auto", "on", "off"
EFFORTS = ("low", "medium", "high")
LEVELS = (AUTO, ON, OFF, *EFFORTS)
MOST_BUDGET = 1 << 30


@dataclass(frozen=True, slots=True)
class Thinking:
    """A choice. As text: a level, a budget in tokens, or both, such as `high 2048`."""

    level: str = AUTO
    """`auto` leaves it to the template."""
    budget: int | None = None
    """Most tokens of the thoughts in front of an answer."""

    @classmethod
    def parse(cls, text: str) -> "Thinking":
        """Read a choice; `ValueError` completes the words "thinking must be"."""
        words = text.lower().split()
        levels = [word for word in words if word in LEVELS]
        budgets = [int(word) for word in words if word.isascii() and word.isdigit()]
        fits = len(levels) + len(budgets) == len(words) > 0 and len(levels) < 2 and len(budgets) < 2
        if not fits or not all(1 <= budget <= MOST_BUDGET for budget in budgets):
            raise ValueError(f"{', '.join(LEVELS)} or a budget in tokens, not {text!r}")
        if levels == [OFF] and budgets:
            raise ValueError(f"off or a budget in tokens, not {text!r}")
        return cls(levels[0] if levels else AUTO, budgets[0] if budgets else None)

    def __str__(self) -> str:
        if self.budget is None:
            return self.level
        return str(self.budget) if self.level == AUTO else f"{self.level} {self.budget}"


@dataclass(frozen=True, slots=True)
class ThinkingSupport:
    """What of such choices a model's template understands."""

    ALL: ClassVar = LEVELS
    can_switch: bool = False
    """Whether it turns thinking on and off."""
    efforts: tuple[str, ...] = ()
    has_thoughts: bool = False
    """Whether thoughts are told from answers, so that they can be ended."""

    @property
    def choices(self) -> tuple[str, ...]:
        """The levels that have an effect."""
        if not self.can_switch and not self.efforts:
            return (AUTO,)
        return (AUTO, ON, *((OFF,) if self.can_switch else ()), *self.efforts)

    def fitted(self, wanted: Thinking) -> Thinking:
        """The part of a choice that has an effect."""
        level = wanted.level if wanted.level in self.choices else AUTO
        return Thinking(level, wanted.budget if self.has_thoughts else None)

    def lacks(self, wanted: Thinking) -> str | None:
        """Say which part of a choice has no effect, for the words "the chat template of …"; None: none."""
        if wanted.level not in self.choices:
            if self.choices == (AUTO,):
                return f"has no switch for thinking: {wanted.level} changes nothing"
            return f"knows thinking {', '.join(self.choices)}: {wanted.level} changes nothing"
        if wanted.budget is not None and not self.has_thoughts:
            return "sets no thoughts apart: a budget changes nothing"
        return None
