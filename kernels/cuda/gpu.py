"""What choices of tiles need to know of a GPU."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

_BLOCK_SHARED = {(8, 0): 163, (8, 6): 99, (8, 9): 99, (9, 0): 227, (10, 0): 227, (12, 0): 99}
"""KiB of shared memory that one program may take, by compute capability; a multiprocessor has 1 more."""
_OTHER_SHARED = 64


@dataclass(frozen=True, slots=True)
class Gpu:
    """What the choice needs to know of a device."""

    multiprocessors: int
    shared: int
    """Bytes that one program may take."""
    tma: bool
    """Whether Triton's bulk tensor copies feed the tensor cores directly (Hopper)."""


def gpu_of(tensor: Tensor) -> Gpu:
    """The device of a tensor; without a GPU, the smallest."""
    if not tensor.is_cuda:
        return Gpu(1, _OTHER_SHARED << 10, False)
    properties = torch.cuda.get_device_properties(tensor.device)
    return _gpu(properties.multi_processor_count, properties.major, properties.minor)


@cache
def _gpu(multiprocessors: int, major: int, minor: int) -> Gpu:
    shared = _BLOCK_SHARED.get((major, minor), _OTHER_SHARED) if torch.version.cuda else _OTHER_SHARED
    return Gpu(multiprocessors, shared << 10, torch.version.cuda is not None and major == 9)
