"""The threads that share a kernel's work: those of the OpenMP that torch has loaded.

A thread of the program has a team of its own as soon as it asks for one, and OpenMP keeps it. Members of a
team that rests for a moment spin, so that the next kernel has them at once: but only while all teams
together are no more threads than there are cores. And a team that is asked for with fewer threads than
before ends the others, to start them again for the next kernel.

Teams that together are more threads than cores wait for each other's members at every kernel's end. A load
beside answers therefore takes some cores for itself, and passes do without these.
"""

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

_SOFT = 1
_SHARE_OF_LOADS = 4
"""One core in so many, but at least one, is a load's beside answers."""
_ANSWERING_S = 1.0
"""A pass that is older belongs to no answer that goes on."""


class _Own(threading.local):
    """What each thread of the program keeps for itself."""

    of_all: int | None = None
    """Threads of its kernels without a load, while there is one."""


_own = _Own()
_of_loads = 0
"""Cores that passes leave to a load."""
_last_pass = -_ANSWERING_S
"""Monotonic seconds."""


def threads_for(pieces: int) -> int:
    """Threads worth waking for so many pieces of work: one or all."""
    return 1 if pieces <= 1 else torch.get_num_threads()


def parallel_call() -> Callable[[int, int, int, int], None]:
    """Has threads call what is at an address: (address, its argument, threads, 0).

    Raises OSError where torch has no OpenMP.
    """
    entry: Callable[[int, int, int, int], None] = _openmp().GOMP_parallel
    return entry


@contextmanager
def passing_team() -> Iterator[None]:
    """Around work that is not the calling thread's usual: its team ends with it, for the sake of others'.

    Nothing ends where OpenMP is not torch's, or too old to be asked.
    """
    try:
        yield
    finally:
        with suppress(OSError, AttributeError):
            _openmp().omp_pause_resource_all(_SOFT)


@contextmanager
def cores_of_load() -> Iterator[None]:
    """Around a load, by its thread: beside answers it has cores of its own, and they the others."""
    global _of_loads
    count = torch.get_num_threads()
    share = max(1, count // _SHARE_OF_LOADS)
    beside = time.monotonic() - _last_pass < _ANSWERING_S
    if beside:
        _use_threads(share)
    _of_loads = share
    try:
        yield
    finally:
        _of_loads = 0
        if beside:
            _use_threads(count)


def leave_cores_to_loads() -> None:
    """Before a pass, by the thread that runs it: it takes the cores that no load has."""
    global _last_pass
    _last_pass = time.monotonic()
    if _of_loads and _own.of_all is None:
        _own.of_all = torch.get_num_threads()
        _use_threads(max(1, _own.of_all - _of_loads))
    elif not _of_loads and _own.of_all is not None:
        _use_threads(_own.of_all)
        _own.of_all = None


def _use_threads(count: int) -> None:
    """Of the calling thread's kernels alone."""
    with suppress(OSError, AttributeError):
        _openmp().omp_set_num_threads(count)


@cache
def _openmp() -> Any:
    """Raises OSError where there is none."""
    package = Path(torch.__file__).parent
    for path in sorted([*package.glob("lib/lib*omp*"), *package.parent.glob("torch.libs/lib*omp*")]):
        try:
            library: Any = ctypes.CDLL(str(path))
            entry = library.GOMP_parallel
        except (OSError, AttributeError):
            continue
        entry.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        entry.restype = None
        return library
    raise OSError("torch's OpenMP library was not found")
