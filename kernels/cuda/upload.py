"""Bytes of a file to a device: they are read by several threads while earlier ones travel.

A copy from pageable memory blocks its caller and crosses the bus at a fraction of its speed. Here
each piece of `PIECE` bytes is read into a pinned buffer by a reader thread, which also queues its
transfer on a stream of its own; the buffer is free again when the transfer's event has passed.
"""

import os
import queue
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from kernels.cuda.streams import OwnStream, give_back_spare
from kernels.quant.stored import StoredBytes, bytes_of

PIECE = 4 << 20
"""Bytes of one pinned buffer: 0.1 ms of a fast bus, so that its latency does not count."""

SLOTS = 12
"""Pinned buffers: one that each reader fills, and twice as many on their way."""

READERS = 4
"""More only meet in the page tables: 4 read 13.6 GB/s of cached pages into an H200, 12 read 10."""


@dataclass(slots=True)
class _Slot:
    pinned: Tensor
    pages: np.ndarray
    """The same memory for what is read into it, and for NumPy, whose copies start no threads of their own."""
    sent: torch.cuda.Event


class Uploader:
    """Copies raw weights to one device; close it after a load, it holds pinned memory and threads.

    On the CPU there is nothing to copy and `upload` gives back what it gets, or reads.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._readers: ThreadPoolExecutor | None = None
        if device.type == "cuda":
            self._own = OwnStream(device)
            self._stream = self._own.stream
            self._slots = _slots()
            self._readers = ThreadPoolExecutor(min(READERS, _cores()), thread_name_prefix="upload")

    def upload(self, stored: Tensor | StoredBytes) -> Tensor:
        """uint8 [n] on the CPU or in a file → the same bytes on the device.

        Returns when the last byte was read; work queued on the current stream afterwards finds all
        bytes in place, and transfers of the next call overlap with it.
        """
        if self._readers is None:
            return bytes_of(stored)
        with torch.cuda.stream(self._stream):
            # Memory of the copying stream's own pool: it never waits for the stream that reads it.
            target = torch.empty(stored.nbytes, dtype=torch.uint8, device=self.device)
        starts = range(0, stored.nbytes, PIECE)
        for _ in self._readers.map(lambda start: self._send(stored, target, start), starts):
            pass
        current = torch.cuda.current_stream(self.device)
        current.wait_stream(self._stream)
        target.record_stream(current)
        return target

    def close(self) -> None:
        """Stop the threads and give the pool's free memory back to the device."""
        if self._readers is None:
            return
        self._readers.shutdown()
        self._stream.synchronize()
        give_back_spare()

    def __enter__(self) -> "Uploader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _send(self, stored: Tensor | StoredBytes, target: Tensor, start: int) -> None:
        count = min(PIECE, stored.nbytes - start)
        slot = self._slots.get()
        try:
            slot.sent.synchronize()
            if isinstance(stored, Tensor):
                np.copyto(slot.pages[:count], stored.numpy()[start : start + count])
            else:
                stored.read_into(slot.pages[:count], start)
            with torch.cuda.stream(self._stream):
                target[start : start + count].copy_(slot.pinned[:count], non_blocking=True)
                slot.sent.record(self._stream)
        finally:
            self._slots.put(slot)


def _slots() -> "queue.SimpleQueue[_Slot]":
    ring: queue.SimpleQueue[_Slot] = queue.SimpleQueue()
    memory = torch.empty(SLOTS * PIECE, dtype=torch.uint8, pin_memory=True)
    for pinned in memory.split(PIECE):
        ring.put(_Slot(pinned, pinned.numpy(), torch.cuda.Event()))
    return ring


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
