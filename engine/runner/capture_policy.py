"""Whether a shape that is needed now is captured now, by what was measured on this computer.

Capturing takes the host several times as long as launching the kernels one by one, and all of it is
a gap for rows that decode. Not capturing costs a little in every pass: where the host launches more
slowly than the device computes, the device waits. So a shape runs kernel by kernel until that waiting
adds up to one capture; nobody can lose more than twice the least (the ski rental problem).
"""

from collections.abc import Hashable

_SMOOTHING = 0.3

DEVICE_BOUND = 0.1
"""Part of a pass that the host waits for the device, from which on launching has held nothing up."""


class CapturePolicy:
    """What captures and launches have taken. Not thread-safe."""

    def __init__(self) -> None:
        self.capture_ms: float | None = None
        """Smoothed; None before the first capture."""
        self.launch_ms: float | None = None
        """The same of launching a pass kernel by kernel."""
        self._lost: dict[Hashable, float] = {}
        """Milliseconds by shape that a device has waited for the launching host."""

    def captured(self, shape: Hashable, ms: float) -> None:
        """A shape was captured in `ms`."""
        self.capture_ms = _smooth(self.capture_ms, ms)
        self._lost.pop(shape, None)

    def launched(self, shape: Hashable, launch_ms: float, total_ms: float) -> None:
        """A pass of compiled kernels was launched one by one, and its results were there at `total_ms`."""
        self.launch_ms = _smooth(self.launch_ms, launch_ms)
        if total_ms - launch_ms < DEVICE_BOUND * total_ms:
            self._lost[shape] = self._lost.get(shape, 0.0) + launch_ms

    def capture_now(self, shape: Hashable) -> bool:
        """Whether capturing is the better choice although rows wait; unmeasured, it is tried."""
        if self.capture_ms is None:
            return True
        if self.launch_ms is not None and self.launch_ms >= self.capture_ms:
            return True
        return self._lost.get(shape, 0.0) >= self.capture_ms


def _smooth(old: float | None, new: float) -> float:
    return new if old is None else old + _SMOOTHING * (new - old)
