"""Memory of the host for weights: pages of its own, large ones where the system has them.

Small pages cost more than filling them does: each is a fault at a load, 2 µs, and a miss of the processor's
table of addresses later, whenever weights are read.
"""

import mmap

import torch
from torch import Tensor

SLAB_BYTES = 64 << 20
"""Taken from the system at a time: many matrices share large pages."""
_ALIGN = 64
"""A line of the processor's cache."""


def make_pages(count: int) -> mmap.mmap | None:
    """So many bytes that are zero, made when they are first touched; None where a system has no such call.

    Raises `MemoryError`.
    """
    if not hasattr(mmap, "MAP_PRIVATE"):
        return None
    try:
        pages = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{count >> 20} MiB of host memory: {error}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


def host_bytes(*shape: int) -> Tensor:
    """uint8 of a shape in pages of its own, contents undefined; raises `MemoryError`."""
    pages = make_pages(max(1, torch.Size(shape).numel()))
    if pages is None:
        return torch.empty(shape, dtype=torch.uint8)
    return torch.frombuffer(pages, dtype=torch.uint8)[: torch.Size(shape).numel()].view(shape)


class HostMemory:
    """One model's: what is taken lies side by side, and a slab goes with the last of it. Not thread-safe."""

    def __init__(self) -> None:
        self._slab = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def take(self, *shape: int) -> Tensor:
        """uint8 of a shape, contents undefined; raises `MemoryError`."""
        count = torch.Size(shape).numel()
        if count > SLAB_BYTES:
            return host_bytes(*shape)
        start = -(-self._used // _ALIGN) * _ALIGN
        if start + count > self._slab.nbytes:
            self._slab, start = host_bytes(SLAB_BYTES), 0
        self._used = start + count
        return self._slab[start : self._used].view(shape)
