"""KV blocks kept in host memory: numbered slots of one block each, in slabs that a thread pins.

Making and pinning a slab takes milliseconds, so slots are asked for ahead of their need (`grow_to`) and
can be used once they are counted in `capacity`. Copies to and from a slot are queued in the runner's
stream; what owns the slots must not close them before that stream is waited for.
"""

import logging
import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kernels.streaming.pinned import PinnedMemory

log = logging.getLogger(__name__)

SLAB_BYTES = 64 << 20
"""Memory is pinned in pieces of this size: short enough that the driver, which others wait for meanwhile,
is busy for some milliseconds only."""

_ALIGN = 64


class HostPool:
    """Slots for the KV pages of one pool of a model. `grow_to` and `capacity` may be used by any thread."""

    def __init__(
        self,
        block_bytes: int,
        device: torch.device,
        allocate: Callable[[int], Tensor] | None = None,
        slab_bytes: int | None = None,
    ) -> None:
        """block_bytes: of one page in all layers; device: where the KV is, plain memory for the CPU's.

        allocate: uint8 memory of so many bytes, instead of its own. slab_bytes: of the pieces it is taken in.
        """
        self.block_bytes = block_bytes
        self._stride = -(-block_bytes // _ALIGN) * _ALIGN
        self._slots_per_slab = max(1, (slab_bytes or SLAB_BYTES) // self._stride)
        self._slab_bytes = self._slots_per_slab * self._stride
        self._device, self._pinned = device, device.type == "cuda"
        self._memory = PinnedMemory(device)
        self._given, self._allocate = allocate, allocate or self._take
        self._slabs: list[Tensor] = []
        self._views: dict[int, list[Tensor]] | None = None
        """Of each slot, where it has few: making them takes longer than copying a block of a small model."""
        self._wanted = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def capacity(self) -> int:
        """Slots that can be used now: 0 to `capacity` - 1."""
        return len(self._slabs) * self._slots_per_slab

    @property
    def nbytes(self) -> int:
        """Host memory that is held."""
        return len(self._slabs) * self._slab_bytes

    def grow_to(self, slots: int) -> None:
        """Ask for `slots` slots at least; returns at once, `capacity` follows.

        Where the computer has no more memory to pin, `capacity` stays what it is until the next call.
        """
        with self._changed:
            self._wanted = max(self._wanted, -(-slots // self._slots_per_slab))
            if self._closed or self._thread is not None or len(self._slabs) >= self._wanted:
                return
            if self._pinned:
                self._thread = threading.Thread(target=self._grow, name="host KV", daemon=True)
                self._thread.start()
        if not self._pinned:
            self._grow()

    def wait(self, timeout: float) -> bool:
        """Wait until nothing is being allocated; False when it takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, timeout)

    def parts(self, slot: int, like: Sequence[Tensor]) -> list[Tensor]:
        """Views of a slot's memory with the types and shapes of a block's pieces, one after another."""
        if self._views is not None and slot in self._views:
            return self._views[slot]
        memory = self._slot(slot)
        result, offset = [], 0
        for piece in like:
            result.append(memory[offset : offset + piece.nbytes].view(piece.dtype).view(piece.shape))
            offset += piece.nbytes
        if self._views is not None:
            self._views[slot] = result
        return result

    def content(self, slot: int) -> memoryview:
        """The bytes of a slot, to be written to a file or read from one."""
        return self._slot(slot)[: self.block_bytes].numpy().data

    def staging(self, slots: int) -> "HostPool":
        """A pool of the same pages with so many slots, taken at once: milliseconds if memory is pinned."""
        pool = HostPool(self.block_bytes, self._device, self._given, slots * self._stride)
        pool._views, pool._wanted = {}, 1
        pool._grow()
        return pool

    def close(self) -> None:
        """Give the memory back; no copy may be under way."""
        with self._changed:
            self._closed = True
            self._slabs.clear()
            self._views = None
            self._memory.close()

    def _slot(self, slot: int) -> Tensor:
        if not 0 <= slot < self.capacity:
            raise IndexError(f"host slot {slot} of {self.capacity}")
        start = slot % self._slots_per_slab * self._stride
        return self._slabs[slot // self._slots_per_slab][start : start + self._stride]

    def _grow(self) -> None:
        while True:
            with self._changed:
                if self._closed or len(self._slabs) >= self._wanted:
                    self._stop_growing()
                    return
            try:
                slab = self._allocate(self._slab_bytes)
            except (MemoryError, RuntimeError) as error:
                log.warning("no more host memory for KV: %s", error)
                with self._changed:
                    self._wanted = len(self._slabs)
                    self._stop_growing()
                return
            if not self._keep(slab):
                self._memory.close()

    def _keep(self, slab: Tensor) -> bool:
        """Whether the pool was not closed meanwhile."""
        with self._changed:
            if not self._closed:
                self._slabs.append(slab)
            return not self._closed

    def _stop_growing(self) -> None:
        self._thread = None
        self._changed.notify_all()

    def _take(self, num_bytes: int) -> Tensor:
        if self._pinned:
            return self._memory.take_pinned(num_bytes)
        return torch.empty(num_bytes, dtype=torch.uint8)
