"""What NVIDIA's driver tells of a GPU beside what computing needs, through its own library.

The library comes with the driver. Where it is missing, or does not know the GPU, there is nothing to tell.
"""

import ctypes
import logging
from functools import lru_cache

import torch

from engine.api.detail import DeviceUse

log = logging.getLogger(__name__)

_LIBRARY = "libnvidia-ml.so.1"
_OK = 0


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def device_use(device: torch.device) -> DeviceUse | None:
    """Memory and power of a GPU now; None for other devices and where the driver tells nothing."""
    if device.type != "cuda":
        return None
    library = _library()
    if library is None:
        return None
    try:
        return read_use(library, f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except (AttributeError, RuntimeError) as error:
        # An older driver lacks a function, another kind of GPU its name; a device may be lost.
        log.info("the driver's library tells nothing of %s: %s", device, error)
        return None


def read_use(library: ctypes.CDLL, uuid: str) -> DeviceUse | None:
    """Ask the driver's library for the GPU of this name; CUDA may number GPUs in another order."""
    handle = ctypes.c_void_p()
    if library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)) != _OK:
        return None
    memory, milliwatts = _Memory(), ctypes.c_uint()
    knows_memory = library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == _OK
    knows_power = library.nvmlDeviceGetPowerUsage(handle, ctypes.byref(milliwatts)) == _OK
    return DeviceUse(
        memory.used if knows_memory else None,
        memory.total if knows_memory else None,
        milliwatts.value / 1e3 if knows_power else None,
    )


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    """The driver's library, ready to be asked; it stays so until the program ends."""
    try:
        library = ctypes.CDLL(_LIBRARY)
        return library if library.nvmlInit_v2() == _OK else None
    except (OSError, AttributeError):
        log.info("the driver's library %s tells nothing of power", _LIBRARY)
        return None
