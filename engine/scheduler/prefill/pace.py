"""How much of their pace answers keep while prompts are read beside them.

A tick that reads may last several idle ones where a pass that reads anything costs as much. So what ticks
took beyond `tick_factor` idle ones is owed to the rows that decoded in them, and while something is owed
ticks read nothing. Over a long prompt a tick lasts `tick_factor` idle ones in the mean, and the prompt takes
at most factor / (factor - 1) times as long as without this. A tick that reads a short one owes nothing, and
none rests while one waits: where many clients ask for little they would wait for each other's rests.
"""

from engine.scheduler.cost_model import CostModel
from engine.scheduler.prefill.chunked_prefill import NO_LIMIT
from engine.scheduler.sequence import Sequence

LONG_MS = 50.0
"""A prompt is long while reading the rest of it takes more than this by itself."""

OWED_MS = 20.0
"""From which a rest begins; it lasts until nothing is owed. A device whose queue has run empty computes its
first ticks more slowly, so rests are few and of several ticks."""

MOST_OWED_MS = 250.0
"""Of what a tick took because the machine stood still, the rest is forgotten."""

REST_TICKS = 64
"""Most ticks in a row that read nothing although somebody waits: prompts get on whatever is owed."""

READ_TICKS = 32
"""After so many in a row that read, one that does not tells anew what the rows alone take: their contexts
have grown meanwhile."""


def unread_ms(sequence: Sequence, cost: CostModel) -> float:
    """What reading the rest of a prompt takes by itself."""
    length = sequence.remaining
    return length * cost.token_ms(sequence.model, sequence.num_computed, length)


class Pace:
    """What is owed to the rows that decode."""

    def __init__(self, tick_factor: float, looks: bool = False) -> None:
        """looks: whether one tick behind `READ_TICKS` reads nothing, where it costs nothing besides."""
        self._factor, self._looks = tick_factor, looks
        self._read = 0
        """Ticks in a row that read a long prompt."""
        self._idle_ms = 0.0
        """Of the rows of the tick in flight, without prefill."""
        self._since: float | None = None
        """When the tick in flight began, or the one before it ended; None beside nobody."""
        self._counts = True
        self._owed_ms = 0.0
        self._rests = 0
        self._rested = 0
        self.resting = False
        """Whether the tick in flight reads nothing for the sake of its rows."""

    @property
    def steady(self) -> bool:
        """Whether the tick in flight lasts as long as rows have that nothing is read beside.

        The first one of a rest may not.
        """
        return not self.resting or self._rested > 0

    def begin(self, idle_ms: float, waiting: bool, now: float) -> bool:
        """Begin a tick beside rows that decode in `idle_ms`; returns whether it is to read nothing.

        idle_ms: 0 where nobody decodes. waiting: whether prompts are to be read, all of them long. now: a
        clock's seconds.
        """
        if not idle_ms or self._since is None:
            self._since = now if idle_ms else None
        self._idle_ms, self._counts = idle_ms, True
        if not idle_ms:
            self._owed_ms = 0.0
        owes = self._owed_ms > (0.0 if self.resting else OWED_MS)
        self.resting = waiting and owes and self._rests < REST_TICKS
        self._rests = self._rests + 1 if self.resting else 0
        self._rested = self._rested if self.resting else 0
        beside = waiting and idle_ms > 0.0
        looks = beside and self._looks and self._read >= READ_TICKS
        self._read = self._read + 1 if beside and not (self.resting or looks) else 0
        return self.resting or looks

    def skip(self) -> None:
        """Count nothing of the tick in flight: it reads what is short, or has a budget of its own."""
        self._counts = False

    def end(self, now: float | None) -> None:
        """The tick in flight is done, or the first of several that were queued; None: at an unknown time."""
        if self._since is None or now is None:
            return
        if self._counts:
            owed = self._owed_ms if self.resting else min(self._owed_ms, OWED_MS)
            owed += (now - self._since) * 1e3 - self._factor * self._idle_ms
            self._owed_ms = min(max(owed, 0.0), MOST_OWED_MS)
        self._since = now
        self._rested += self.resting

    def may_repeat(self, ahead: int) -> bool:
        """Whether one more tick as the one in flight may be queued behind `ahead` that were not measured."""
        if not self.resting:
            return True
        paid = ahead * (self._factor - 1.0) * self._idle_ms
        if self._owed_ms <= paid or self._rests >= REST_TICKS:
            return False
        self._rests += 1
        return True

    def cycle_ms(self, limit_ms: float, idle_ms: float) -> float:
        """Of a tick of `limit_ms` that reads and the rests that it costs."""
        owed = limit_ms - self._factor * idle_ms
        if limit_ms == NO_LIMIT or owed <= 0.0:
            return limit_ms
        most = REST_TICKS * idle_ms
        return limit_ms + (min(owed / (self._factor - 1.0), most) if self._factor > 1.0 else most)
