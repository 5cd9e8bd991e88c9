"""The threads that share a kernel's work: those of the OpenMP that torch has loaded.

A thread of the program has a team of its own as soon as it asks for one, and OpenMP keeps it. Members of a
team that rests for a moment spin, so that the next kernel has them at once: but only while all teams
together are no more threads than there are cores. And a team that is asked for with fewer threads than
before ends the others, to start them again for the next kernel.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

_SOFT = 1


def threads_for(pieces: int) -> int:
    """Threads worth waking for so many pieces of work: one or all."""
    return 1 if pieces <= 1 else torch.get_num_threads()


def parallel_call() -> Callable[[int, int, int, int], None]:
    """Has threads call what is at an address: (address, its argument, threads, 0).

    Raises OSError where torch has no OpenMP.
    """
    entry: Callable[[int, int, int, int], None] = _openmp().GOMP_parallel
    return entry


def team_calls() -> tuple[int, int]:
    """Addresses of what tells a member of a team its number from 0 on, and of what has members wait for all.

    Raises OSError where torch has no OpenMP.
    """
    library = _openmp()
    number, wait = (
        ctypes.cast(call, ctypes.c_void_p).value
        for call in (library.omp_get_thread_num, library.GOMP_barrier)
    )
    assert number and wait
    return number, wait


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
