"""What an engine's options mean on this computer: its device and what computes there."""

import os

import torch

from engine.api.errors import EngineError
from engine.api.options import EngineOptions
from engine.device.memory import HOST_KV_SHARE, free_bytes
from engine.footprint.device import rules_of
from engine.footprint.rules import DeviceRules
from kernels import machine_cache
from kernels.contract import Operations
from kernels.select import operations_for, usable_gpus

_MANY_CORES, _SPARE_CORES = 8, 2
"""Of so many cores some are left to the driver's and the program's other threads: products of few rows are
waited for until the last thread is done, and are bound by memory, which fewer threads read as fast."""


def device_rules(options: EngineOptions) -> tuple[DeviceRules, ...]:
    """How an engine of these options would hold weights and KV on each of its devices; none is started.

    Raises `EngineError` naming an option that cannot be served.
    """
    machine_cache.keep_in(options.cache_folder)
    return tuple(rules_of(operations_of(name, options)) for name in device_names(options.device))


def operations_of(device: str, options: EngineOptions) -> Operations:
    """What computes on a device; raises `EngineError` naming an option that cannot be served."""
    try:
        return operations_for(device, options.weight_dtype, options.kv_dtype, options.batch_independent)
    except ValueError as error:
        raise EngineError(f"engine options: {error}") from None


def usable_cores() -> int:
    """Cores that this process may run on; torch counts all of the machine's."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads_beside(device: str) -> int:
    """Threads for what the processor computes: as many as cores, but for some where a GPU needs them too."""
    cores = min(torch.get_num_threads(), usable_cores())
    return cores - _SPARE_CORES if device != "cpu" and cores >= _MANY_CORES else cores


def host_kv_bytes(wanted: int | None, device: torch.device) -> int:
    """Host memory for KV that a full GPU puts aside: as wanted, else a share of what is free."""
    if wanted is not None:
        return wanted
    return int(free_bytes(torch.device("cpu")) * HOST_KV_SHARE) if device.type == "cuda" else 0


def device_names(device: str) -> tuple[str, ...]:
    """All that a choice stands for: `auto` is every GPU that is of use, or the processor where there is none.

    Raises `EngineError` for a device that is none or is not there.
    """
    if device == "auto":
        return tuple(f"cuda:{gpu}" for gpu in usable_gpus()) if torch.cuda.is_available() else ("cpu",)
    kind, _, number = device.partition(":")
    if kind not in ("cpu", "cuda") or (kind != device and (kind == "cpu" or not number.isdecimal())):
        raise EngineError(f"engine options: device: '{device}' is not one of auto, cpu, cuda, cuda:N")
    if kind == "cuda" and not torch.cuda.is_available():
        raise EngineError("engine options: device: no CUDA device is usable here; choose cpu or auto")
    if number and int(number) >= (count := torch.cuda.device_count()):
        there = "cuda:0 is" if count == 1 else f"cuda:0 to cuda:{count - 1} are"
        raise EngineError(f"engine options: device: {device} is not there, {there}; choose that or auto")
    return (device,)
