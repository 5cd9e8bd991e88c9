"""The large tensors of one model's weights in one range of addresses: their memory can be given back.

Kernels and captured CUDA graphs hold addresses. So weights that are put aside keep theirs: the memory
behind them goes, the contents wait in pinned host memory, and when both are back everything runs as
before. Contents never change, so a copy that was made once serves every later time.
"""

import logging
import weakref
from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import torch
from torch import Tensor

from engine.device.stream import open_stream
from kernels.cuda.streams import CAPTURE_LOCK, give_back_spare
from kernels.kv.slab_kv import give_back
from kernels.kv.vmm import SLAB_BYTES, Memory, reserve
from kernels.streaming.pinned import PinnedMemory

log = logging.getLogger(__name__)

_LEAST_BYTES = 64 << 10
"""What is smaller stays where it is: all of it together is not worth moving."""
_ALIGN = 512
_SPARE = 17 / 16
"""Addresses beyond what was predicted; what finds none stays where it is."""

_open: "weakref.WeakSet[WeightMemory]" = weakref.WeakSet()


def mapped_bytes(device: torch.device) -> int:
    """Memory of a device that weights take beside torch's allocator."""
    return sum(memory.nbytes for memory in tuple(_open) if memory.device == device)


class WeightMemory:
    """Takes tensors in while a model is loaded; later `rest` and `wake`, by one thread at a time."""

    def __init__(self, device: torch.device, expected_bytes: int) -> None:
        self.device = device
        self._reserved = -(-int(expected_bytes * _SPARE) // SLAB_BYTES) * SLAB_BYTES
        self._memory: Memory = reserve(device, self._reserved)
        self._bytes = self._memory.tensor(torch.uint8, (self._reserved,))
        self._used = 0
        self._copies: list[Tensor] = []
        self._host = PinnedMemory(device)
        """Where the copies are."""
        self._forgotten = weakref.finalize(self, give_back, [self._memory], device)
        self._forgotten.atexit = False
        _open.add(self)

    @property
    def nbytes(self) -> int:
        """Memory of the device that is held."""
        return self._memory.mapped_bytes

    @property
    def used_bytes(self) -> int:
        """Of the tensors that were taken in, aside or not."""
        return self._used

    @property
    def host_bytes(self) -> int:
        """Host memory that the copies take."""
        return sum(copy.nbytes for copy in self._copies)

    @torch.inference_mode()
    def adopt(self, handle: object) -> None:
        """Move what a handle's large tensors hold into the range, in the current stream.

        The tensors stay the same objects. What finds no room stays where it is.
        """
        moved: dict[int, int] = {}
        for tensor in _tensors(handle):
            storage = tensor.untyped_storage()
            if tensor.device.type != self.device.type or storage.nbytes() < _LEAST_BYTES:
                continue
            if storage.data_ptr() == self._bytes.untyped_storage().data_ptr():
                continue
            place = moved.get(storage.data_ptr())
            if place is None:
                place = self._take(storage)
            if place is None:
                continue
            moved[storage.data_ptr()] = place
            start = (self._bytes.storage_offset() + place) // tensor.itemsize + tensor.storage_offset()
            tensor.set_(self._bytes.untyped_storage(), start, tensor.shape, tensor.stride())

    def _take(self, storage: torch.UntypedStorage) -> int | None:
        """Copy a storage; returns where it begins, or None where the range is full."""
        place = -(-self._used // _ALIGN) * _ALIGN
        end = place + storage.nbytes()
        if end > self._reserved:
            return None
        if end > self._memory.mapped_bytes and not self._back(end):
            return None
        source = torch.empty(0, dtype=torch.uint8, device=self.device).set_(storage)
        self._bytes[place:end].copy_(source)
        self._used = end
        return place

    def _back(self, end: int) -> bool:
        """Have memory behind the range's beginning; what torch keeps for later may have to go for it."""
        try:
            self._memory.resize(end)
        except MemoryError:
            give_back_spare()
            try:
                self._memory.resize(end)
            except MemoryError:
                log.warning("some weights stay on the device when their model is paused")
                return False
        return True

    def rest(self) -> bool:
        """Copy everything to host memory and give the device's back; False where the host has too little.

        No kernel may use the weights from now on. It waits for copies, nobody else does.
        """
        if not self._copies and not self._copy_out():
            return False
        with CAPTURE_LOCK:
            self._memory.unback()
        return True

    def _copy_out(self) -> bool:
        stream = open_stream(self.device)
        copies: list[Tensor] = []
        try:
            for start in range(0, self._used, SLAB_BYTES):
                part = self._bytes[start : min(start + SLAB_BYTES, self._used)]
                # The next is pinned beside the copy.
                copies.append(self._host.take_pinned(part.nbytes))
                with stream.current():
                    copies[-1].copy_(part, non_blocking=True)
        except (MemoryError, RuntimeError) as error:
            log.warning("weights cannot wait in host memory: %s", error)
            stream.mark().synchronize()
            self._drop_copies()
            return False
        stream.mark().synchronize()
        self._copies = copies
        return True

    def wake(self, *, keep_copy: bool) -> None:
        """Bring everything back to its addresses; raises `MemoryError`, still aside, when the device is full.

        keep_copy: so that the next `rest` copies nothing.
        """
        try:
            self._memory.resize(self._used)
        except BaseException:
            with CAPTURE_LOCK:
                self._memory.unback()
            raise
        stream = open_stream(self.device)
        with stream.current():
            for index, copy in enumerate(self._copies):
                start = index * SLAB_BYTES
                self._bytes[start : start + copy.nbytes].copy_(copy, non_blocking=True)
        stream.mark().synchronize()
        if not keep_copy:
            self._drop_copies()

    def close(self) -> None:
        """Give everything back; the tensors become invalid."""
        _open.discard(self)
        self._forgotten.detach()
        self._drop_copies()
        self._memory.close()

    def _drop_copies(self) -> None:
        self._copies = []
        self._host.close()
        self._host = PinnedMemory(self.device)


def _tensors(handle: object) -> Iterator[Tensor]:
    """Every tensor that a handle of dataclasses and lists reaches."""
    if isinstance(handle, Tensor):
        yield handle
    elif isinstance(handle, list | tuple):
        for part in handle:
            yield from _tensors(part)
    elif is_dataclass(handle) and not isinstance(handle, type):
        for one in fields(handle):
            yield from _tensors(getattr(handle, one.name))
