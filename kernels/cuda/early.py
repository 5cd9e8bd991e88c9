"""Kernels that start while the one before them ends (programmatic dependent launch, NVIDIA from sm_90 on).

A kernel that is launched early may read nothing that the one before it writes, and write nothing, until it
has waited; all of its programs must wait, so that what comes next can rely on all that came before. One that
lets the next start before it waits itself leaves it nothing to read by then but what no kernel writes.

Programs that start early go where there is room, which leaves a grid smaller than the GPU on a few
multiprocessors: such a grid may follow early upon a few programs alone.
"""

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.cuda.activations import has_ptx

_FIRST = (9, 0)
"""Compute capability."""

_capability = cache(torch.cuda.get_device_capability)


def early(tensor: Tensor, starts_early: bool = True) -> dict[str, Any]:
    """Options of a launch on this tensor's device: the kernel's EARLY, and Triton's own.

    starts_early: whether it may start early itself, and not only let the next one start.
    """
    if not has_ptx(tensor) or _capability(tensor.device) < _FIRST:
        return {"EARLY": False}
    return {"EARLY": True, "launch_pdl": True} if starts_early else {"EARLY": True}


@triton.jit
def wait_for_inputs(EARLY: tl.constexpr) -> None:
    """Until all that was launched before has ended."""
    if EARLY:
        gdc_wait()


@triton.jit
def let_next_start(EARLY: tl.constexpr) -> None:
    """The next kernel may start once all programs of this one came here, or ended."""
    if EARLY:
        gdc_launch_dependents()
