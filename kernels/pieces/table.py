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
        self._written: dict[str, float] = {}
        self._read: dict[str, float] = {}
        """Milliseconds by operation, of a token that is written and of one of a prompt."""
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

    def captured(self, *, prompts: bool) -> bool:
        """Whether passes, with attention as of prompts or not, can be captured as graphs."""
        needed = _WAITING if prompts else (ANSWERS, EXPERTS)
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
        """Around a pass that writes one token, or reads some."""
        self._measured = {}
        try:
            yield
            of_token = {name: ms / tokens for name, ms in self._measured.items()}
            if tokens == 1:
                self._written = of_token
            else:
                self._read = of_token
        finally:
            self._measured = None

    @property
    def sentences(self) -> tuple[str, ...]:
        """For people: operations of one reason together, and what stands behind a bar left out."""
        by_reason: dict[str, list[str]] = {}
        for operation, reason in self._reasons.items():
            by_reason.setdefault(reason, []).append(operation)
        return tuple(
            f"torch computes {_listed(operations)}{self._cost(operations)}: {reason}"
            for reason, operations in by_reason.items()
        )

    def _cost(self, operations: list[str]) -> str:
        sums = [
            (sum(ms[name] for name in operations if name in ms), what)
            for ms, what in ((self._written, "written"), (self._read, "read"))
        ]
        said = [f"{ms:.2g} ms a token {what}" for ms, what in sums if ms]
        return f" ({', '.join(said)})" if said else ""

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        return time.perf_counter()


def _listed(operations: list[str]) -> str:
    *first, last = dict.fromkeys(operation.partition("|")[0] for operation in operations)
    return f"{', '.join(first)} and {last}" if first else last
