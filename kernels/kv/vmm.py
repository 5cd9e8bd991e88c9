"""Device memory that grows and shrinks behind one fixed address range.

Addresses are reserved once for the largest size; physical memory is mapped behind them slab by slab
and given back from the end. A tensor over the whole range is valid from the start; touching what is
not mapped is an illegal address. CUDA's virtual memory management (driver API, "Virtual Memory
Management") does this; where there is no CUDA, the operating system's own lazy pages do.
"""

import ctypes
import math
from typing import Any, Protocol

import torch
from torch import Tensor

SLAB_BYTES = 64 << 20
"""Physical memory is mapped in multiples of this."""


class Memory(Protocol):
    """A range of addresses of which a leading part is backed."""

    @property
    def mapped_bytes(self) -> int:
        """Physical memory held."""
        ...

    def tensor(self, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """A tensor over the leading part of the range, mapped or not."""
        ...

    def resize(self, num_bytes: int) -> None:
        """Back the first `num_bytes`, rounded up to slabs, and nothing behind them.

        The device must not be using what is given back. Raises `MemoryError` when the device has no
        more; what was mapped stays mapped.
        """
        ...

    def unback(self) -> None:
        """Back nothing; addresses and tensors stay, and nothing may touch them until `resize`."""
        ...

    def close(self) -> None:
        """Give memory and addresses back; tensors over them become invalid."""
        ...


def reserve(device: torch.device, num_bytes: int) -> Memory:
    """Reserve addresses for `num_bytes`; the first slab is backed at once."""
    return DeviceSlabs(device, num_bytes) if device.type == "cuda" else HostMemory(num_bytes)


class HostMemory:
    """Pages become resident when they are first written; nothing is given back before the end."""

    def __init__(self, num_bytes: int) -> None:
        self._bytes = torch.empty(num_bytes, dtype=torch.uint8)
        self.mapped_bytes = 0

    def tensor(self, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """A view."""
        count = math.prod(shape) * dtype.itemsize
        return self._bytes[:count].view(dtype).view(shape)

    def resize(self, num_bytes: int) -> None:
        """Count only."""
        self.mapped_bytes = min(-(-num_bytes // SLAB_BYTES) * SLAB_BYTES, self._bytes.numel())

    def unback(self) -> None:
        """Forget the contents, so that whoever needs them still is found out."""
        self._bytes.fill_(0xFF)
        self.mapped_bytes = 0

    def close(self) -> None:
        """Tensors keep it alive as long as they need it."""
        self.mapped_bytes = 0


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _AllocFlags(ctypes.Structure):
    _fields_ = [
        ("compression_type", ctypes.c_ubyte),
        ("gpu_direct_rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    ]


class _AllocationProp(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32_metadata", ctypes.c_void_p),
        ("flags", _AllocFlags),
    ]


class _AccessDesc(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


_PINNED = 1
_DEVICE = 1
_READ_WRITE = 3
_OUT_OF_MEMORY = 2


class _Addresses:
    """What `torch.as_tensor` reads to take memory over as it is."""

    def __init__(self, address: int, num_bytes: int, owner: object) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }
        self._owner = owner


class DeviceSlabs:
    """Virtual addresses of a CUDA device with physical slabs behind their beginning."""

    def __init__(self, device: torch.device, num_bytes: int) -> None:
        # The driver's functions need a context; torch makes it with the first call that needs one.
        torch.cuda.current_stream(device).synchronize()
        self._driver = ctypes.CDLL("libcuda.so.1")
        index = torch.cuda.current_device() if device.index is None else device.index
        self._location = _Location(_DEVICE, index)
        self._device = torch.device("cuda", index)
        self._prop = _AllocationProp(type=_PINNED, location=self._location)
        self._reserved = -(-num_bytes // SLAB_BYTES) * SLAB_BYTES
        self._handles: list[ctypes.c_ulonglong] = []
        self._base = ctypes.c_ulonglong()
        self._call(
            "cuMemAddressReserve",
            ctypes.byref(self._base),
            ctypes.c_size_t(self._reserved),
            ctypes.c_size_t(0),
            ctypes.c_ulonglong(0),
            ctypes.c_ulonglong(0),
        )
        try:
            self.resize(1)
        except BaseException:
            self.close()
            raise
        self._bytes: Tensor = torch.as_tensor(
            _Addresses(self._base.value, self._reserved, self), device=self._device
        )

    @property
    def mapped_bytes(self) -> int:
        """Physical memory held."""
        return len(self._handles) * SLAB_BYTES

    def tensor(self, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """A view; it keeps no memory alive."""
        count = math.prod(shape) * dtype.itemsize
        return self._bytes[:count].view(dtype).view(shape)

    def resize(self, num_bytes: int) -> None:
        """Map or unmap slabs at the end."""
        wanted = -(-min(num_bytes, self._reserved) // SLAB_BYTES)
        while len(self._handles) < wanted:
            self._map_one()
        while len(self._handles) > max(wanted, 1):
            self._unmap_one()

    def unback(self) -> None:
        """Unmap every slab."""
        while self._handles:
            self._unmap_one()

    def close(self) -> None:
        """Give memory and addresses back; tensors over them become invalid."""
        self.unback()
        if self._base.value:
            self._call("cuMemAddressFree", self._base, ctypes.c_size_t(self._reserved))
            self._base = ctypes.c_ulonglong()

    def _map_one(self) -> None:
        handle = ctypes.c_ulonglong()
        size = ctypes.c_size_t(SLAB_BYTES)
        self._call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(self._prop), ctypes.c_ulonglong(0))
        place = ctypes.c_ulonglong(self._base.value + len(self._handles) * SLAB_BYTES)
        try:
            self._call("cuMemMap", place, size, ctypes.c_size_t(0), handle, ctypes.c_ulonglong(0))
        except BaseException:
            self._call("cuMemRelease", handle)
            raise
        self._handles.append(handle)
        access = _AccessDesc(self._location, _READ_WRITE)
        try:
            self._call("cuMemSetAccess", place, size, ctypes.byref(access), ctypes.c_size_t(1))
        except BaseException:
            self._unmap_one()
            raise

    def _unmap_one(self) -> None:
        place = ctypes.c_ulonglong(self._base.value + (len(self._handles) - 1) * SLAB_BYTES)
        handle = self._handles.pop()
        self._call("cuMemUnmap", place, ctypes.c_size_t(SLAB_BYTES))
        self._call("cuMemRelease", handle)

    def _call(self, name: str, *arguments: Any) -> None:
        """Raise `MemoryError` when the device is full and `RuntimeError` for anything else."""
        status = getattr(self._driver, name)(*arguments)
        if status == _OUT_OF_MEMORY:
            raise MemoryError(f"the device has no {SLAB_BYTES >> 20} MiB left")
        if status:
            raise RuntimeError(f"{name} failed with CUDA error {status}")
