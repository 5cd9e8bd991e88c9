"""The order in which a pass's weights cross over, and the memory of a GPU that they take turns in.

Every matrix of a layer has a place, which the same matrix of the next layer gets: it is sent as soon as the
one before has been multiplied with, so that copies of the next layer run beside the products of this one.
At the end of a pass the first matrices of the next one are sent.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.cuda.streams import OwnStream
from kernels.planes.layout import PlanesMatrix, planes_nbytes, planes_within
from kernels.streaming.pinned import PinnedMemory
from kernels.streaming.sources import Piece, Source, pieces_of
from kernels.streaming.tiles import planes_of_tiles

STAGING_BYTES = 16 << 20
"""What is copied before it is repacked: long enough that the bus's latency does not count."""


@dataclass(slots=True, eq=False)
class Part:
    """One matrix on its way to its place."""

    number: int
    place: Hashable
    planes: PlanesMatrix
    rows: int
    """Of one expert, or of the matrix."""
    pieces: list[Piece]
    arrived: Any


@dataclass(frozen=True, slots=True)
class Streamed:
    """A handle of the GPU's operations, usable while its parts are in their places."""

    handle: Any
    first: tuple[Part, ...]
    """Those that must be there when it is used."""
    last: tuple[Part, ...]
    """Those that it has used up in the end; experts change from gate and up to down meanwhile."""


class WeightStream:
    """Weights of one model whose passes never overlap."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.memory = PinnedMemory(device)
        """For what crosses over."""
        self._apart = device.type == "cuda"
        self._own = OwnStream(device) if self._apart else None
        self._sizes: dict[Hashable, int] = {}
        self._memory: dict[Hashable, Tensor] = {}
        self._staging = torch.empty(0, dtype=torch.uint8)
        self._parts: list[Part] = []
        self._held: set[Hashable] = set()
        """Places with a matrix that is sent and not used yet."""
        self._free: dict[Hashable, Any] = {}
        """What must have passed on the device before a place is written to."""
        self._sent = self._at = 0
        """Parts sent, and used, of the pass that goes on."""
        self._brings = True
        """Whether what is sent is copied."""

    @property
    def nbytes(self) -> int:
        """Memory of the device."""
        return self._staging.nbytes + sum(memory.nbytes for memory in self._memory.values())

    @property
    def source_bytes(self) -> int:
        """What crosses over in a pass."""
        return sum(
            target.nbytes for part in self._parts for piece in part.pieces for target, _ in piece.copies
        )

    def close(self) -> None:
        """Let go of host memory; nothing may be under way."""
        if self._own is not None:
            self._own.stream.synchronize()
        self.memory.close()

    def reserve(self, place: Hashable, source: Source) -> None:
        """Say what a place will hold; before `open`."""
        needed = planes_nbytes(source.type, source.shape)
        self._sizes[place] = max(self._sizes.get(place, 0), needed)

    def open(self) -> None:
        """Take the memory."""
        for place, size in self._sizes.items():
            self._memory[place] = torch.zeros(size, dtype=torch.uint8, device=self.device)
        self._staging = torch.empty(STAGING_BYTES, dtype=torch.uint8, device=self.device)

    def add(self, place: Hashable, source: Source) -> Part:
        """The next matrix, in the order of use."""
        planes = planes_within(self._memory[place], source.type, source.shape)
        arrived = torch.cuda.Event() if self._apart else None
        part = Part(len(self._parts), place, planes, source.rows, pieces_of(source, self._staging), arrived)
        self._parts.append(part)
        return part

    def begin(self) -> None:
        """A pass begins with the first matrix, wherever the one before was left."""
        if self._at:
            self._forget()
        self._send()

    def _forget(self) -> None:
        """Nothing is in its place."""
        self._at = self._sent = 0
        self._held.clear()
        self._free = {place: self._mark() for place in self._memory}

    @contextmanager
    def bringing_nothing(self) -> Iterator[None]:
        """Passes within launch their kernels on whatever is there: to make them ready."""
        self._brings = False
        try:
            yield
        finally:
            self._brings = True
            self._forget()

    @contextmanager
    def using(self, streamed: Any) -> Iterator[Any]:
        """The handle, for what is queued within; others than those that cross over are always there."""
        if not isinstance(streamed, Streamed):
            yield streamed
            return
        for part in streamed.first:
            self.arrive(part)
        yield streamed.handle
        for part in streamed.last:
            self.leave(part)

    def arrive(self, part: Part) -> None:
        """What is queued from now on finds a matrix in its place: the next one that is used."""
        if part.number != self._at:
            raise RuntimeError(f"weights: matrix {part.number} is asked for, {self._at} is the next")
        self._send()
        if self._apart:
            torch.cuda.current_stream(self.device).wait_event(part.arrived)
        self._at += 1

    def leave(self, part: Part) -> None:
        """What is queued from now on does not use a matrix any more."""
        self._held.discard(part.place)
        self._free[part.place] = self._mark()
        if self._at == len(self._parts):
            self._at, self._sent = 0, self._sent - len(self._parts)
        self._send()

    def between(self, before: Part, after: Part) -> Callable[[], None]:
        """What changes from one matrix to the next."""

        def change() -> None:
            self.leave(before)
            self.arrive(after)

        return change

    def _mark(self) -> Any:
        if not self._apart:
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event

    def _send(self) -> None:
        """All whose places are free, in order, at most those of a pass beyond what is used."""
        while self._sent < self._at + len(self._parts):
            part = self._parts[self._sent % len(self._parts)]
            if part.place in self._held:
                return
            self._held.add(part.place)
            self._sent += 1
            if self._own is None:
                self._copy(part)
                continue
            with torch.cuda.stream(self._own.stream):
                if (free := self._free.get(part.place)) is not None:
                    self._own.stream.wait_event(free)
                self._copy(part)
                part.arrived.record(self._own.stream)

    def _copy(self, part: Part) -> None:
        for piece in part.pieces:
            for target, source in piece.copies if self._brings else ():
                target.copy_(source, non_blocking=True)
            planes_of_tiles(self._staging, piece.places, part.planes, piece.first, piece.count, part.rows)
