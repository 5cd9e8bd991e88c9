"""Which type of dense weights this computer multiplies fastest."""

import platform
import time
from functools import cache
from pathlib import Path

import torch

from kernels import machine_cache
from kernels.reference.dense_linear import make_dense

FEW_AND_MANY_ROWS = (1, 8, 64)
MANY_ROWS = (64, 256)
_SHAPE = (3072, 1024)
_ADVANTAGE = 1.25
"""bfloat16 must win by this much at every row count: it costs exactness."""
_CHOICES = {b"float32": torch.float32, b"bfloat16": torch.bfloat16}
_LEAST_ROUNDS, _MOST_ROUNDS, _ENOUGH_SECONDS = 3, 10, 0.06
_CPU_LINES = ("model name", "flags", "CPU implementer", "CPU part", "Features")
"""Of `/proc/cpuinfo`, what names a processor and its features."""


@cache
def fastest_weight_dtype(device: torch.device, rows: tuple[int, ...] = FEW_AND_MANY_ROWS) -> torch.dtype:
    """float32 or bfloat16 for products of so many rows on a device, by a probe of about 100 ms.

    Processors with matrix units or AVX512-BF16 run bfloat16 1.3 to 3 times as fast; elsewhere it is
    emulated and slower than float32, which needs no probe. Where the two are close a probe falls now
    this way, now that, and answers differ with it: so its result is kept between runs.
    """
    if device.type != "cpu":
        return torch.bfloat16
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported() or _emulates_bfloat16():
        return torch.float32
    key = _surroundings(rows)
    known = _CHOICES.get(machine_cache.find(key) or b"")
    if known is not None:
        return known
    wide, narrow = _seconds(rows)
    wins = all(full >= _ADVANTAGE * half for full, half in zip(wide, narrow, strict=True))
    name = b"bfloat16" if wins else b"float32"
    machine_cache.keep(key, name)
    return _CHOICES[name]


def _emulates_bfloat16() -> bool:
    """Whether this is an x86 processor without instructions for it."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    return not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _surroundings(rows: tuple[int, ...]) -> str:
    """All that a probe's result depends on, but for the moment it is made in."""
    probe = f"weight type by {rows}, {_SHAPE}, {_ADVANTAGE}"
    library = f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"
    return "|".join([probe, library, f"{torch.get_num_threads()} threads", *_processor()])


def _processor() -> list[str]:
    try:
        # Of the first one only: the rest repeats it, or is another kind of core of the same chip.
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    except OSError:
        first = ""
    lines = [line for line in first.splitlines() if line.partition(":")[0].strip() in _CPU_LINES]
    return [platform.machine(), platform.processor(), *lines]


def _seconds(row_counts: tuple[int, ...]) -> tuple[list[float], list[float]]:
    """Best of some rounds per row count, of float32 and of bfloat16.

    The two take turns, so that a busy moment is one for both.
    """
    given = max(row_counts), _SHAPE[1]
    sides = [
        (make_dense(torch.ones(_SHAPE, dtype=dtype), None), torch.ones(given, dtype=dtype))
        for dtype in _CHOICES.values()
    ]
    for rows in row_counts:
        for dense, x in sides:
            dense.product(x[:rows])
    best = [[float("inf")] * len(row_counts) for _ in sides]
    end = time.perf_counter() + _ENOUGH_SECONDS
    for done in range(_MOST_ROUNDS):
        if done >= _LEAST_ROUNDS and time.perf_counter() >= end:
            break
        for index, rows in enumerate(row_counts):
            for side, (dense, x) in enumerate(sides):
                start = time.perf_counter()
                dense.product(x[:rows])
                best[side][index] = min(best[side][index], time.perf_counter() - start)
    return best[0], best[1]
