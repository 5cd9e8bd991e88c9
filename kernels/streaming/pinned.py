"""Host memory that a GPU reads and writes across the bus: weights, and KV and weights that are put aside.

Pages of their own, large ones where the system has them: a copy from memory that the driver has pinned runs
at the bus's speed and waits for nobody. torch's own pinned memory is rounded up to powers of two, too much
for weights; and the driver makes its pages while everybody else who calls it waits.
"""

import logging
import mmap
import weakref
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kernels.host_memory import make_pages

log = logging.getLogger(__name__)

PAGE_BYTES = 4096
"""Of the smallest pages that a system has."""


@dataclass(slots=True)
class _Pages:
    memory: list[mmap.mmap] = field(default_factory=list)
    """Pages must not go while they are pinned."""
    pinned: list[int] = field(default_factory=list)
    """Addresses that the driver knows."""


class PinnedMemory:
    """Memory of one model, held until it is closed, or gone."""

    def __init__(self, device: torch.device) -> None:
        """device: the one that reads it; no memory is pinned for the CPU."""
        self._device, self._pins = device, device.type == "cuda"
        self._pages = _Pages()
        self._unpinned: list[Tensor] = []
        self._forgotten = weakref.finalize(self, _give_back, self._pages)
        self._forgotten.atexit = False

    def take(self, *shape: int) -> Tensor:
        """uint8 of a shape, contents undefined; raises `MemoryError`."""
        count = max(1, torch.Size(shape).numel())
        pages = make_pages(count)
        if pages is None:
            return torch.empty(shape, dtype=torch.uint8)
        made = torch.frombuffer(pages, dtype=torch.uint8)
        self._pages.memory.append(pages)
        self._unpinned.append(made)
        return made[: torch.Size(shape).numel()].view(shape)

    def take_pinned(self, count: int) -> Tensor:
        """uint8 of so many bytes, pinned at once; raises `MemoryError`.

        Its pages are made before the driver pins them: other threads' calls of the driver wait for the
        pinning alone, 2 ms for 64 MiB.
        """
        made = self.take(count)
        made[::PAGE_BYTES].fill_(0)
        if self.pin():
            raise MemoryError(f"{count >> 20} MiB of host memory could not be pinned")
        return made

    def pin(self) -> int:
        """Have the driver pin all of it, best once it is filled; returns the bytes that it would not."""
        taken, self._unpinned = self._unpinned, []
        return sum(self._pin(one) for one in taken) if self._pins else 0

    def close(self) -> None:
        """Unpin it; no copy may be under way. It goes with the tensors."""
        self._forgotten.detach()
        _give_back(self._pages)

    def _pin(self, taken: Tensor) -> int:
        driver, address = torch.cuda.cudart(), taken.data_ptr()
        with torch.cuda.device(self._device):
            error = int(driver.cudaHostRegister(address, taken.nbytes, 0))
        if error:
            log.warning("%s bytes of host memory were not pinned: CUDA error %s", taken.nbytes, error)
            return taken.nbytes
        self._pages.pinned.append(address)
        return 0


def _give_back(pages: _Pages) -> None:
    while pages.pinned:
        torch.cuda.cudart().cudaHostUnregister(pages.pinned.pop())
    pages.memory.clear()
