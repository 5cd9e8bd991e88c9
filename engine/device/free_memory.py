"""What memory is free, asked of the system and of a GPU's driver: without torch, so that lists stay cheap."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_CGROUP = Path("/sys/fs/cgroup")
_DRIVER_LIBRARY = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"


def free_host_bytes() -> int:
    """Memory of this computer that a new allocation can use."""
    import psutil

    free = int(psutil.virtual_memory().available)
    allowed = _allowed_bytes()
    return free if allowed is None else min(free, allowed)


def _allowed_bytes() -> int | None:
    """What a container's own limit leaves (cgroup v2), or None without one."""
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
        pages = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        return max(0, limit - used + int(pages.get("inactive_file", 0)))
    except (OSError, ValueError):
        return None


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def free_gpu_bytes(uuid: str) -> int | None:
    """Memory of an NVIDIA GPU that nobody holds; None where the driver does not say (NVML)."""
    with gpu_driver(uuid) as (driver, handle):
        memory = _Memory()
        if driver is None or driver.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
            return None
        return int(memory.free)


@contextmanager
def gpu_driver(uuid: str) -> Iterator[tuple[Any, ctypes.c_void_p]]:
    """NVML and its handle of a GPU; None in place of NVML where it does not know it."""
    handle = ctypes.c_void_p()
    try:
        driver: Any = ctypes.CDLL(_DRIVER_LIBRARY)
    except OSError:
        driver = None
    if driver is None or driver.nvmlInit_v2():
        yield None, handle
        return
    try:
        unknown = driver.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle))
        yield None if unknown else driver, handle
    finally:
        driver.nvmlShutdown()
