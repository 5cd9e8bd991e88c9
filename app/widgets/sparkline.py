"""A speed over time as one line of eighths."""

from collections import deque
from collections.abc import Iterable

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_HEADROOM = 1.4


def sparkline(values: Iterable[float], width: int) -> str:
    """Draw the newest `width` values, the largest a little below the top; newest at the right."""
    shown = list(values)[-width:]
    top = max(shown, default=0.0) * _HEADROOM
    if top <= 0:
        return " " * width
    bars = "".join(_EIGHTHS[0 if value <= 0 else max(1, round(value / top * 8))] for value in shown)
    return bars.rjust(width)


class SpeedHistory:
    """Remembers speeds at a fixed pace, whatever the pace of the samples."""

    def __init__(self, seconds_per_value: float = 0.5, length: int = 60) -> None:
        self.values: deque[float] = deque(maxlen=length)
        self._pace = seconds_per_value
        self._due = 0.0

    def add(self, value: float, now: float) -> None:
        """Take a sample at `now` seconds."""
        if now >= self._due:
            self.values.append(value)
            self._due = now + self._pace
