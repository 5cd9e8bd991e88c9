"""Which type of dense weights this computer multiplies fastest."""

import platform
import time
from functools import cache

import torch

from kernels.reference.dense_linear import make_dense

_ROWS = (1, 8, 64)
_SHAPE = (3072, 1024)
_ADVANTAGE = 1.25
"""bfloat16 must win by this much at every row count: it costs exactness."""


@cache
def fastest_weight_dtype(device: torch.device) -> torch.dtype:
    """float32 or bfloat16 for dense weights on a device, by a probe of about 50 ms.

    Processors with matrix units or AVX512-BF16 run bfloat16 1.3 to 3 times as fast; elsewhere it is
    emulated and slower than float32, which needs no probe.
    """
    if device.type != "cpu":
        return torch.bfloat16
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported() or _emulates_bfloat16():
        return torch.float32
    wide, narrow = _seconds(torch.float32), _seconds(torch.bfloat16)
    wins = all(full >= _ADVANTAGE * half for full, half in zip(wide, narrow, strict=True))
    return torch.bfloat16 if wins else torch.float32


def _emulates_bfloat16() -> bool:
    """Whether this is an x86 processor without instructions for it."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    return not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _seconds(dtype: torch.dtype) -> list[float]:
    """Best of three per row count."""
    dense = make_dense(torch.ones(_SHAPE, dtype=dtype), None)
    result = []
    for rows in _ROWS:
        x = torch.ones(rows, _SHAPE[1], dtype=dtype)
        dense.product(x)
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            dense.product(x)
            best = min(best, time.perf_counter() - start)
        result.append(best)
    return result
