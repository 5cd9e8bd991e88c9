"""How fast bytes come, and how long the rest will take."""

from collections import deque

_WINDOW, _GRAIN = 5.0, 0.05


class Speed:
    """Bytes a second over the last seconds, so that a stall shows soon and a hiccup hardly."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def note(self, now: float, received: int) -> None:
        """Note that so many bytes have come so far."""
        if len(self._points) > 1 and now - self._points[-2][0] < _GRAIN:
            self._points.pop()
        self._points.append((now, received))
        while len(self._points) > 2 and now - self._points[1][0] > _WINDOW:
            self._points.popleft()

    def rate(self, now: float) -> float:
        """Bytes a second until now; 0 while nothing is known."""
        if not self._points:
            return 0.0
        since, first = self._points[0]
        return max(0, self._points[-1][1] - first) / (now - since) if now > since else 0.0

    def seconds_left(self, now: float, missing: int | None) -> float | None:
        """How long so many bytes will take at this speed; None where that is not known."""
        rate = self.rate(now)
        return max(0, missing) / rate if missing is not None and rate > 0 else None
