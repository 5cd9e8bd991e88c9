"""How fast memory is copied between this computer and a device."""

import logging
from functools import cache
from itertools import pairwise

import torch

from kernels.cuda.streams import OwnStream

log = logging.getLogger(__name__)

_LINK_BYTES = 16 << 20


@cache
def host_gb_s(device: torch.device) -> float | None:
    """GB/s of copies between pinned host memory and a device, the slower direction, in about 10 ms.

    None for the CPU, and where the probe finds no memory.
    """
    if device.type != "cuda":
        return None
    try:
        host = torch.empty(_LINK_BYTES, dtype=torch.uint8, pin_memory=True)
        there = torch.empty(_LINK_BYTES, dtype=torch.uint8, device=device)
        slower = max(_copy_ms(there, host, device), _copy_ms(host, there, device))
    except RuntimeError as error:
        log.warning("the speed of the bus was not measured: %s", error)
        return None
    return _LINK_BYTES / slower / 1e6


def _copy_ms(target: torch.Tensor, source: torch.Tensor, device: torch.device) -> float:
    """Best of three, after one that wakes the link."""
    own = OwnStream(device)
    stream = own.stream
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(5)]
    with torch.cuda.stream(stream):
        for mark in marks[:-1]:
            mark.record(stream)
            target.copy_(source, non_blocking=True)
        marks[-1].record(stream)
    stream.synchronize()
    return min(before.elapsed_time(after) for before, after in pairwise(marks[1:]))
