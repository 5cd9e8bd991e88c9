"""Compiles what launches will need, many kernels beside each other, and runs none of them.

Compilers take up to seconds for a kernel and are asked at its first launch: a pass that is launched waits
for one after another. They leave the interpreter free for most of that time, so threads help.
"""

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any

import torch
from torch import Tensor
from triton import AsyncCompileMode
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.launchers import load_one_at_a_time

MOST_THREADS = 12
"""Threads that compile. More would only wait: parsing a kernel holds the interpreter."""


class _Asked(threading.local):
    """What a thread's launches have asked compilers for, while they are not to run."""

    seen: set[object] | None = None


_asked = _Asked()
_lock = threading.Lock()


def compile_together(launches: Callable[[], None], progress: Callable[[float], None]) -> None:
    """Make ready every kernel that `launches` launches in this thread; it runs none of them.

    `launches` must not look at results, since there are none. Kernels asked for first are compiled first.
    Under Triton's interpreter, which has no compilers, it just runs. Raises what a compiler raises.
    """
    _let_launches_ask()
    with _Compilers() as compilers:
        # The mode is not left where a compiler fails, so it gets a context of its own.
        copy_context().run(_compile, launches, compilers, progress)


def _compile(
    launches: Callable[[], None], compilers: "_Compilers", progress: Callable[[float], None]
) -> None:
    with AsyncCompileMode(compilers):
        _asked.seen = set()
        try:
            launches()
        finally:
            _asked.seen = None
        for index, one in enumerate(compilers.work):
            progress(index / len(compilers.work))
            one.exception()


class _Compilers(ThreadPoolExecutor):
    """Threads that compile kernels and bring them to the device."""

    def __init__(self) -> None:
        if torch.cuda.is_available():
            device = partial(torch.cuda.set_device, torch.cuda.current_device())
            super().__init__(MOST_THREADS, "compiler", initializer=device)
        else:
            super().__init__(MOST_THREADS, "compiler")
        self.work: list[Future] = []

    def submit(self, compile: Callable[..., Any], /, *args: Any, **options: Any) -> Future:
        """Compile a kernel, with the launcher that a first launch would otherwise make."""
        self.work.append(super().submit(_ready, compile, *args, **options))
        return self.work[-1]


def _ready(compile: Callable[..., Any], *args: Any, **options: Any) -> Any:
    kernel = compile(*args, **options)
    if torch.cuda.is_available():
        assert kernel.run is not None  # made when it is first looked at
    return kernel


def _let_launches_ask() -> None:
    """Change how Triton launches, for the whole process; further calls change nothing."""
    load_one_at_a_time()
    with _lock:
        original = JITFunction.run
        if getattr(original, "asks", False):
            return

        def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            seen = _asked.seen
            if seen is None:
                return original(self, *args, grid=grid, warmup=warmup, **options)
            asked = (id(self), tuple(map(_kind, args)), *((name, _kind(x)) for name, x in options.items()))
            if asked in seen:
                return None
            seen.add(asked)
            return original(self, *args, grid=grid, warmup=True, **options)

        run.asks = True  # type: ignore[attr-defined]
        JITFunction.run = run


def _kind(argument: Any) -> object:
    """What of an argument a kernel may be compiled for: to ask for each of many layers takes long."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16
    if isinstance(argument, TensorDescriptor):
        return argument.base.dtype, tuple(argument.block_shape)
    if isinstance(argument, int) and not isinstance(argument, bool):
        return "int", argument == 1, argument % 16 == 0, argument.bit_length() > 31
    if isinstance(argument, tuple):
        return tuple(map(_kind, argument))
    return argument if isinstance(argument, Hashable) else id(argument)
