"""Products by the vendor's matrix library, and the memory that it keeps for them.

torch gives the library a workspace, 32 MiB on the largest GPUs, for every pair of a thread's handle and
a stream, and keeps it: models that come and go would add one whenever another thread met another stream.
"""

import threading

import torch
from torch import Tensor

_LOCK = threading.Lock()
"""Between looking a workspace up and queueing the product that uses it, nobody may give it back."""


def matmul(a: Tensor, b: Tensor, dtype: torch.dtype | None = None, scale: float = 1.0) -> Tensor:
    """a [M, K] @ b [K, N], in their type or another one; times a scale in their own."""
    with _LOCK:
        if scale != 1.0:
            # Scaled before it is rounded. What would be added is not read.
            return torch.addmm(a[:1, :1], a, b, beta=0, alpha=scale)
        return torch.mm(a, b) if dtype is None or dtype == a.dtype else torch.mm(a, b, out_dtype=dtype)


def free_workspaces() -> None:
    """Give the library's workspaces back to torch's allocator; the next product takes a new one.

    Not while a graph is captured. A graph needs the workspaces of its own products for as long as it is
    replayed: call this before and after its capture, then they are in its own memory.
    """
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        with _LOCK:
            clear()
