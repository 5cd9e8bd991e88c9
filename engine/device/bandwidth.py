"""How fast memory is read: a short measurement of this computer's, the driver's figures of a GPU's."""

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from engine.device.free_memory import gpu_driver

_READ_BYTES = 64 << 20
_SECONDS = 0.04
"""The reading ends with the pass that begins before."""
_MEMORY_CLOCK = 2
_TRANSFERS = 2
"""Of a memory clock's cycle."""


def host_bandwidth(threads: int) -> float:
    """Bytes a second that so many threads read of this computer's memory; takes some 50 ms."""
    parts = [np.ones(_READ_BYTES // 8 // threads, dtype=np.int64) for _ in range(threads)]
    best = 0.0
    with ThreadPoolExecutor(threads, "bandwidth") as pool:
        end = time.perf_counter() + _SECONDS
        while not best or time.perf_counter() < end:
            started = time.perf_counter()
            list(pool.map(np.max, parts))
            best = max(best, sum(part.nbytes for part in parts) / (time.perf_counter() - started))
    return best


def gpu_bandwidth(uuid: str) -> float | None:
    """Bytes a second that an NVIDIA GPU's memory gives at its highest clock; None where nobody says it."""
    width, megahertz = ctypes.c_uint(), ctypes.c_uint()
    with gpu_driver(uuid) as (driver, handle):
        if (
            driver is None
            or driver.nvmlDeviceGetMemoryBusWidth(handle, ctypes.byref(width))
            or driver.nvmlDeviceGetMaxClockInfo(handle, _MEMORY_CLOCK, ctypes.byref(megahertz))
        ):
            return None
    return width.value / 8 * megahertz.value * 1e6 * _TRANSFERS or None
