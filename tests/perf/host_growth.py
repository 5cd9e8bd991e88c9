"""What others wait while host memory for KV grows on a GPU's computer: `python -m tests.perf.host_growth`.

One thread takes pinned memory, another calls the driver as a tick does: ten events and small copies, then
it waits for them. Says how long such ticks took, with torch's pinned memory and with the engine's.
"""

import argparse
import threading
import time
from collections.abc import Callable

import numpy as np
import torch

from engine.device.host_pool import SLAB_BYTES
from kernels.streaming.pinned import PinnedMemory

CALLS = 10


def ticks_beside(take: Callable[[int], torch.Tensor], slabs: int) -> tuple[float, list[float]]:
    """Seconds until so many slabs are there, and milliseconds of the ticks meanwhile."""
    device_side, host_side = torch.zeros(1024, device="cuda"), torch.zeros(1024, pin_memory=True)
    kept: list[torch.Tensor] = []
    grower = threading.Thread(target=lambda: kept.extend(take(SLAB_BYTES) for _ in range(slabs)))
    torch.cuda.synchronize()
    ticks, began = [], time.perf_counter()
    grower.start()
    while grower.is_alive():
        started = time.perf_counter()
        for _ in range(CALLS):
            event = torch.cuda.Event()
            event.record()
            host_side.copy_(device_side, non_blocking=True)
        event.synchronize()
        ticks.append((time.perf_counter() - started) * 1e3)
    return time.perf_counter() - began, ticks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slabs", type=int, default=24)
    slabs = parser.parse_args().slabs
    memory = PinnedMemory(torch.device("cuda"))
    ways = {
        "torch": lambda count: torch.empty(count, dtype=torch.uint8, pin_memory=True),
        "engine": memory.take_pinned,
    }
    for name, take in ways.items():
        seconds, ticks = ticks_beside(take, slabs)
        speed, p99 = slabs * SLAB_BYTES / seconds / 1e9, float(np.percentile(ticks, 99))
        print(f"{name:<8} {speed:5.2f} GB/s; {len(ticks)} ticks", end=" ")
        print(f"of {np.mean(ticks):.2f} ms in the mean, p99 {p99:.2f}, most {max(ticks):.1f}")
    memory.close()


if __name__ == "__main__":
    main()
