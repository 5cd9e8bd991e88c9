"""What torch computes of one model in place of kernels, why, and how long it takes."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from kernels.cuda.errors import reason_of

log = logging.getLogger(__name__)

ANSWERS, PROMPTS = "attention of answers", "attention of prompts"
EXPERTS = "experts"
_WAITING = (ANSWERS, PROMPTS, EXPERTS)
"""What torch computes only once the host knows lengths or ids: no graph can be captured of it."""

T = TypeVar("T")


class Pieces:
    """Of one model; it grows while the model is served, from any thread that launches passes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._reasons: dict[str, str] = {}
        self._ms: dict[str, float] = {}
        """Of a token, by operation."""
        self._measured: dict[str, float] | None = None
        """Milliseconds of the pass that is being measured."""

    def __contains__(self, operation: str) -> bool:
        return operation in self._reasons

    def __bool__(self) -> bool:
        return bool(self._reasons)

    def add(self, operation: str, reason: str) -> None:
        """Have torch compute an operation from now on."""
        self._reasons = self._reasons | {operation: reason}

    def add_failed(self, operation: str, error: Exception) -> None:
        """The same for one whose kernel raised an error, which the log keeps."""
        log.warning("torch computes %s from now on: a kernel failed", operation, exc_info=error)
        self.add(operation, reason_of(error))

    def captured(self, *, chunks: bool) -> bool:
        """Whether passes, with chunks of prompts or without, can be captured as graphs."""
        needed = _WAITING if chunks else (ANSWERS, EXPERTS)
        return not any(operation in self._reasons for operation in needed)

    def run(self, operation: str, compute: Callable[[], T]) -> T:
        """What torch computes, measured where that was asked for."""
        if self._measured is None:
            return compute()
        started = self._now()
        made = compute()
        self._measured[operation] = self._measured.get(operation, 0.0) + (self._now() - started) * 1e3
        return made

    @contextmanager
    def measuring(self, tokens: int) -> Iterator[None]:
        """Around one pass of so many tokens, by which operations are known that it has."""
        self._measured = {}
        try:
            yield
            new = {name: ms / tokens for name, ms in self._measured.items() if name not in self._ms}
            self._ms = self._ms | new
        finally:
            self._measured = None

    @property
    def sentences(self) -> tuple[str, ...]:
        """For people: operations of one reason together."""
        by_reason: dict[str, list[str]] = {}
        for operation, reason in self._reasons.items():
            by_reason.setdefault(reason, []).append(operation)
        return tuple(
            f"torch computes {' and '.join(operations)}{self._cost(operations)}: {reason}"
            for reason, operations in by_reason.items()
        )

    def _cost(self, operations: list[str]) -> str:
        costs = [self._ms[name] for name in operations if name in self._ms]
        return f" ({', '.join(f'{ms:.2g}' for ms in costs)} ms a token)" if costs else ""

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        return time.perf_counter()
