"""What the last ticks did and how long they took: to say of a long gap what it was.

Always kept, so it must cost a tick next to nothing: one tuple in a ring.
"""

import time
from collections import deque
from collections.abc import Iterable

from engine.api.detail import TickRecord
from engine.runner.base import PassNotes
from engine.scheduler.plan import TickPlan
from engine.scheduler.prefill.chunked_prefill import NO_LIMIT

KEPT = 4096
"""Ticks that are remembered: the last ten seconds of short ones."""


class TickLog:
    """The last `KEPT` ticks. The engine's thread adds; any thread reads."""

    def __init__(self, kept: int = KEPT) -> None:
        self._ring: deque[TickRecord] = deque(maxlen=kept)
        self._expected_ms = 0.0

    def expect(self, ms: float) -> None:
        """What a pass of the tick that comes next was predicted to take."""
        self._expected_ms += ms

    def add(
        self, plan: TickPlan, seconds: float, notes: Iterable[PassNotes], limit_ms: float = NO_LIMIT
    ) -> None:
        """Remember a tick that has just ended."""
        now = time.perf_counter()
        shapes, done = [], []
        for note in notes:
            done += note.take()
            if note.shape is not None:
                shapes.append(note.shape)
        rows = sum(len(batch.decode) for batch in plan.batches)
        readers = sum(len(batch.prefill) for batch in plan.batches)
        self._ring.append(
            TickRecord(
                now,
                rows,
                sum(chunk.length for batch in plan.batches for chunk in batch.prefill),
                tuple(shapes),
                self._expected_ms,
                seconds * 1e3,
                tuple(done),
                limit_ms if limit_ms != NO_LIMIT else 0.0,
                max(0, len(plan.live) - rows - readers),
            )
        )
        self._expected_ms = 0.0

    def records(self) -> list[TickRecord]:
        """The oldest first."""
        while True:
            try:
                return list(self._ring)
            except RuntimeError:
                # A tick ended meanwhile.
                continue
