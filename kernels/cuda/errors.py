"""Which errors are a kernel's, that was not made for this device or this model, and what they mean."""

import re
import traceback

import torch
from triton.compiler.errors import CompilationError
from triton.errors import TritonError
from triton.runtime.errors import OutOfResources, PTXASError

_CODE = re.compile(r"Triton Error \[\w+\]")
_BEFORE_IT_RAN = ("invalid argument", "no kernel image", "out of resources", "invalid device function", "ptx")
"""Of a driver's errors those that leave its context whole: the launch was refused."""


def is_kernels(error: BaseException) -> bool:
    """Whether a kernel could not be compiled or launched, and the device computes on.

    Not so for a lack of memory, and for what a driver reports of work that was launched before.
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return False
    if isinstance(error, TritonError):
        return True
    text = str(error)
    if _CODE.search(text):
        return any(words in text.lower() for words in _BEFORE_IT_RAN)
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_globals.get("__name__", "").split(".")[0] == "triton" for frame, _ in frames)


def reason_of(error: BaseException) -> str:
    """Why a kernel does not serve, in words for a person."""
    if isinstance(error, OutOfResources):
        return f"its kernel needs {error.required} of {error.name}, this device has {error.limit}"
    if isinstance(error, CompilationError | PTXASError):
        return "its kernel cannot be compiled for this device; the log says why"
    return "its kernel cannot be made ready or launched on this device; the log says why"
