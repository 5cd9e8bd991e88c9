"""How much memory there is, what a model takes of it, and how much is left for KV."""

import ctypes
import gc
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress

import torch

from engine.api.errors import EngineError
from engine.device import weight_memory
from engine.device.fit_advice import (
    DEVICE_KV_SHARE,
    KV_SHARE,
    LOAD_MARGIN,
    Holders,
    Need,
    does_not_fit,
    format_bytes,
)
from engine.device.free_memory import free_host_bytes
from kernels.cuda.cublas import free_workspaces
from kernels.cuda.streams import CAPTURE_LOCK, give_back_spare

HOST_KV_SHARE = 0.25
"""Part of the free host memory that KV evicted from a GPU may take, for each model."""


def free_bytes(device: torch.device) -> int:
    """Memory that a new allocation can use."""
    if device.type == "cuda":
        reserved = torch.cuda.memory_reserved(device)
        cached = reserved - torch.cuda.memory_allocated(device)
        free, total = torch.cuda.mem_get_info(device)
        fraction = torch.cuda.get_per_process_memory_fraction(device)
        return min(int(free), int(total * fraction) - reserved - weight_memory.mapped_bytes(device)) + cached
    return free_host_bytes()


def scratch_of(device: torch.device, work: Callable[[], object]) -> int:
    """What `work` makes a GPU's allocator take beyond what it holds when nothing is spare; else 0."""
    if device.type != "cuda":
        return 0
    return_freed_memory()
    before = torch.cuda.memory_reserved(device)
    work()
    return max(0, torch.cuda.memory_reserved(device) - before)


def process_bytes() -> int:
    """Resident memory of this process."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def return_freed_memory() -> None:
    """Hand freed weights back to the system.

    glibc keeps freed pieces below 32 MiB, which are all matrices of a small model: another load
    would not find that memory free.
    """
    if torch.cuda.is_initialized():
        with CAPTURE_LOCK:
            free_workspaces()
            give_back_spare()
        # Pinned memory is kept by torch as well; versions that cannot give it back lack the function.
        with suppress(RuntimeError):
            # It asks all GPUs whether they are done with it, one that is lost too.
            getattr(torch.accelerator, "empty_host_cache", lambda: None)()
    trim_host_memory()


def trim_host_memory() -> None:
    """Hand freed host memory back to the system; waits for no device."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def forget_frames(error: BaseException) -> None:
    """Let go of what the functions that an error came through held: the error may be kept for long."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__


_circles = 0
"""How many whose circles were kept out of collections have ended since all was looked at."""
_MOST_CIRCLES = 16


def note_circles() -> None:
    """Something ended that was kept out of collections, with circles in it."""
    global _circles
    _circles += 1


def freeze_garbage() -> None:
    """Collect garbage, then keep all objects that exist out of later collections.

    Going through what torch alone brings takes tens of milliseconds with the interpreter held: a gap
    in every stream. So what was kept out before is looked at again only where many circles are among it.
    """
    global _circles
    if _circles >= _MOST_CIRCLES:
        _circles = 0
        gc.unfreeze()
    gc.collect()
    gc.freeze()


def default_kv_budget(device: torch.device) -> int:
    """Bytes for KV when no setting caps it."""
    return int(free_bytes(device) * KV_SHARE)


def limit_device(device: torch.device, limit: int) -> None:
    """Use no more of a GPU than `limit` bytes for weights and scratch; KV is counted beside them."""
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / device_bytes(device)), device)


def device_kv_budget(device: torch.device, held: int, scratch: int) -> int:
    """Bytes that KV may take on a GPU where it holds `held` now; scratch: of the longest pass."""
    fraction = torch.cuda.get_per_process_memory_fraction(device)
    room = free_bytes(device) + (held if fraction == 1.0 else 0)
    return max(0, int((room - scratch) * DEVICE_KV_SHARE))


def device_bytes(device: torch.device) -> int:
    """Memory of the whole device."""
    return int(torch.cuda.mem_get_info(device)[1])


def kv_room(budget_bytes: int, device: torch.device) -> int:
    """Bytes that one more model's KV may take: the budget, or less when less is free."""
    return max(0, min(budget_bytes, free_bytes(device) - LOAD_MARGIN // 2))


def check_block_fits(name: str, block_bytes: int, block_size: int, room: int) -> None:
    """Raise `EngineError` with numbers when not even one block of KV would fit."""
    if block_bytes > room:
        raise EngineError(
            f"{name}: {block_size} tokens need {format_bytes(block_bytes)} of KV memory and "
            f"{format_bytes(room)} are there; raise the KV budget or close other models or programs."
        )


def check_weights_fit(need: Need, device: torch.device, holders: Holders) -> None:
    """Raise `EngineError` saying what would help when the weights would not leave the margin free."""
    free = free_bytes(device)
    if need.weight_bytes + LOAD_MARGIN > free:
        raise does_not_fit(need, free, holders)


def beyond_limit(device: torch.device) -> int:
    """Bytes of a GPU that are free but beyond the limit set by `limit_device`."""
    return max(0, int(torch.cuda.mem_get_info(device)[0]) - max(0, free_bytes(device)))
