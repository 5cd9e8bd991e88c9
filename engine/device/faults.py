"""What an error of a device means: memory that may come back, or a device that is gone.

CUDA reports most faults late, from whichever call comes next, and as plain errors with a text. After
an illegal access, an assertion in a kernel or a launch failure every later call of the process fails
too: the context is poisoned and nothing in the process can clean it.
"""

import re

import torch

from kernels.cuda.streams import CAPTURE_LOCK

_LOST = (
    "illegal memory access",
    "illegal address",
    "device-side assert",
    "unspecified launch failure",
    "misaligned address",
    "illegal instruction",
    "invalid program counter",
    "hardware stack error",
    "launch timed out",
    "uncorrectable ecc",
    "device is lost",
    "driver shutting down",
    "cublas_status_execution_failed",
)
_LOST_CODES = frozenset({46, 214, 700, 702, 710, 714, 715, 716, 717, 718, 719})
"""Numbers of the driver's errors that poison a context, as `kernels.kv.vmm` reports them."""
_SHORT = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")
_CODE = re.compile(r"cuda error:? (\d+)")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device or the computer had no memory for what was asked."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _SHORT)


def is_lost(error: BaseException) -> bool:
    """Whether the error says that the device can compute nothing more for this process."""
    if not isinstance(error, RuntimeError) or is_out_of_memory(error):
        return False
    text = str(error).lower()
    code = _CODE.search(text)
    return any(words in text for words in _LOST) or (code is not None and int(code[1]) in _LOST_CODES)


def belongs_to_device(error: BaseException) -> bool:
    """Whether the error says nothing about the row that happened to meet it."""
    return isinstance(error, torch.AcceleratorError) or is_out_of_memory(error) or is_lost(error)


def check_device(device: torch.device) -> None:
    """Compute a little on the device and wait for it; raises what the device raises."""
    if device.type == "cuda":
        with CAPTURE_LOCK:
            torch.cuda.synchronize(device)
    torch.ones(1, device=device).sum().item()


def describe(error: BaseException) -> str:
    """The error's first line, with its type."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
