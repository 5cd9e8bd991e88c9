"""Compiles what launches will need, many kernels beside each other, and runs none of them.

Compilers take up to seconds for a kernel and are asked at its first launch: a pass that is launched waits
for one after another. They leave the interpreter free for most of that time, so threads help. Parsing does
not: kernels are parsed one at a time, or whoever decodes beside them would get one turn of many.
"""

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor
from triton import AsyncCompileMode
from triton.compiler.compiler import ASTSource
from triton.runtime.cache import triton_key
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.cuda.launchers import load_one_at_a_time

MOST_THREADS = 12
"""Threads that compile. More would only wait for each other's parsing."""


class _Current(threading.local):
    compilers: "_Compilers | None" = None
    """Who is asked for what this thread launches; it is run where nobody is."""


_current = _Current()
_lock = threading.Lock()
_parsing = threading.Lock()
_coming: dict[object, Future] = {}
"""What is being compiled, for whoever asks for the same meanwhile."""


def compile_together(launches: Callable[[], None], progress: Callable[[float], None] | None = None) -> None:
    """Make ready every kernel that `launches` launches in this thread; it runs none of them.

    `launches` must not look at results, since there are none. Kernels asked for first are compiled first.
    Under Triton's interpreter, which has no compilers, it just runs. What cannot be compiled is told where it
    is launched: only there it is known what for.
    """
    _let_launches_ask()
    with _Compilers() as compilers:
        # The mode is not left where a compiler fails, so it gets a context of its own.
        copy_context().run(_compile, launches, compilers, progress)


def begin_to_read_compilers() -> None:
    """Have a thread read what makes Triton's cache depend on its own files: hundreds of megabytes, once."""
    threading.Thread(target=triton_key, name="reads compilers", daemon=True).start()


def _compile(
    launches: Callable[[], None], compilers: "_Compilers", progress: Callable[[float], None] | None
) -> None:
    with AsyncCompileMode(compilers, ignore_errors=True):
        _current.compilers = compilers
        try:
            launches()
        finally:
            _current.compilers = None
        for index, one in enumerate(compilers.awaited):
            if progress is not None:
                progress(index / len(compilers.awaited))
            one.exception()


class _Compilers(ThreadPoolExecutor):
    """Threads that compile kernels and bring them to the device."""

    def __init__(self) -> None:
        self._gpu = torch.cuda.current_device() if torch.cuda.is_available() else None
        """Each has kernels of its own, also where they are equal."""
        if self._gpu is not None:
            device = partial(torch.cuda.set_device, self._gpu)
            super().__init__(MOST_THREADS, "compiler", initializer=device)
        else:
            super().__init__(MOST_THREADS, "compiler")
        self._asked: set[object] = set()
        self.awaited: list[Future] = []
        """All that was asked for, where somebody else compiles it too."""

    def ask(self, kernel: object, launch: Callable[[], object]) -> None:
        """Have a kernel compiled that `launch` submits, unless that was asked before."""
        if kernel in self._asked:
            return
        self._asked.add(kernel)
        wanted = self._gpu, kernel
        if (coming := _coming.get(wanted)) is not None:
            self.awaited.append(coming)
            return
        known = len(self.awaited)
        launch()
        for one in self.awaited[known:]:
            _coming[wanted] = one
            one.add_done_callback(lambda _: _coming.pop(wanted, None))

    def submit(self, compile: Callable[..., Any], /, *args: Any, **options: Any) -> Future:
        """Compile a kernel, with the launcher that a first launch would otherwise make."""
        self.awaited.append(super().submit(_ready, compile, *args, **options))
        return self.awaited[-1]


def _ready(compile: Callable[..., Any], *args: Any, **options: Any) -> Any:
    kernel = compile(*args, **options)
    if torch.cuda.is_available():
        launcher = kernel.run  # made when it is first looked at
        assert launcher is not None
    return kernel


def _let_launches_ask() -> None:
    """Change how Triton launches and compiles, for the whole process; further calls change nothing."""
    load_one_at_a_time()
    with _lock:
        original = JITFunction.run
        if getattr(original, "asks", False):
            return

        def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            if _current.compilers is None:
                return original(self, *args, grid=grid, warmup=warmup, **options)
            launch = partial(original, self, *args, grid=grid, warmup=True, **options)
            return _current.compilers.ask(_variant(self, args, options), launch)

        run.asks = True  # type: ignore[attr-defined]
        JITFunction.run = run
        ASTSource.make_ir = _one_at_a_time(ASTSource.make_ir)


def _one_at_a_time(parse: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(parse)
    def alone(*args: Any, **options: Any) -> Any:
        with _parsing:
            return parse(*args, **options)

    return alone


def _variant(function: Any, args: tuple[Any, ...], options: dict[str, Any]) -> object:
    """What a kernel is compiled for. To have Triton find that out for each layer would take long."""
    given = dict(zip(function.arg_names, args, strict=False)) | options
    varying = {parameter.name for parameter in function.params if not parameter.is_constexpr}
    return id(function), *((name, _kind(value, name in varying)) for name, value in given.items())


def _kind(value: Any, varies: bool) -> object:
    """`varies`: whether a number may be another at the next launch of the same kernel."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16
    if isinstance(value, TensorDescriptor):
        return value.base.dtype, tuple(value.block_shape)
    if isinstance(value, tuple):
        return tuple(_kind(part, varies) for part in value)
    if varies and type(value) is int:
        return value == 1, value % 16 == 0, value.bit_length() > 31
    # 1, 1.0 and True are equal.
    return type(value), value if isinstance(value, Hashable) else id(value)
