"""Bringing torch in quickly, in the app's own process.

Half of `import torch` is Python code that describes programs for compilers and exporters. Everything is
computed at once here, so those parts are left until somebody reads an attribute of theirs. A third is
the mapping of its libraries, which needs no interpreter and can go on beside the app's own imports.
"""

import contextlib
import ctypes
import gc
import inspect
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

_DEFERRED = frozenset(
    {
        *("torch._meta_registrations", "torchgen.model"),
        *("torch.distributions", "torch.export", "torch.masked", "torch.optim", "torch.profiler"),
        *("torch.nn.intrinsic", "torch.nn.qat", "torch.nn.quantizable", "torch.nn.quantized"),
        *("torch.quantization", "torch.testing", "torch.utils.data"),
    }
)
"""Parts that no eager computation needs: shape rules of tensors without data, schemas, and libraries."""

_LARGEST_LIBRARY = "lib/libtorch_cpu.so"
_RTLD_NOW = 2


def _map_largest() -> None:
    spec = find_spec("torch")
    for folder in (spec and spec.submodule_search_locations) or []:
        path = Path(folder) / _LARGEST_LIBRARY
        if path.exists():
            # `ctypes.CDLL(path)` would hold the interpreter lock meanwhile; a foreign call lets go of it.
            with contextlib.suppress(OSError, AttributeError):
                entry: Any = ctypes.CDLL(None).dlopen
                entry.restype = ctypes.c_void_p
                entry(bytes(path), ctypes.c_int(_RTLD_NOW))


_mapping = threading.Thread(target=_map_largest, name="torch-libraries", daemon=True)


def map_torch_libraries() -> None:
    """Map torch's largest library on a thread of its own; nothing happens where it is not found."""
    with contextlib.suppress(RuntimeError):
        _mapping.start()


def wait_for_libraries(seconds: float) -> None:
    """Wait so long for the mapping, and no longer than it takes; not at all where it was not begun."""
    if _mapping.is_alive():
        _mapping.join(seconds)


def import_torch() -> None:
    """Import torch without the parts that eager computation never uses.

    Does nothing where torch is there already: a program that embeds the engine has all of it.
    """
    if "torch" in sys.modules:
        return
    if _mapping.is_alive():
        _mapping.join()
    finder = _DeferringFinder()
    sys.meta_path.insert(0, finder)
    try:
        with _no_collections(), _frames_know_their_modules():
            import torch  # noqa: F401
    finally:
        sys.meta_path.remove(finder)


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Modules are not garbage: passes over a million of their objects find nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


@contextlib.contextmanager
def _frames_know_their_modules() -> Iterator[None]:
    """Have `inspect.getmodule` look a frame's module up by name.

    It resolves the files of all modules instead, and torch asks it where its own operators are registered.
    """
    general = inspect.getmodule

    def getmodule(object: Any, _filename: str | None = None) -> ModuleType | None:
        if isinstance(object, FrameType):
            return sys.modules.get(object.f_globals.get("__name__", ""))
        return general(object, _filename)

    inspect.getmodule = getmodule
    try:
        yield
    finally:
        inspect.getmodule = general


class _DeferringFinder(MetaPathFinder):
    """Finds the deferred modules and hands them out unexecuted."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in _DEFERRED else None
        if spec is not None and spec.loader is not None:
            spec.loader = _DeferringLoader(spec.loader)
        return spec


class _DeferringLoader(Loader):
    """Makes a module that is executed when an attribute is missing."""

    def __init__(self, real: Loader) -> None:
        self.real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _DeferredModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave it for later."""


class _DeferredModule(ModuleType):
    """A module that runs when it is first asked for something."""

    def __getattr__(self, name: str) -> Any:
        # The import system and inspection look for dunder names of every module.
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        spec = self.__spec__
        assert spec is not None and isinstance(spec.loader, _DeferringLoader)
        self.__class__ = ModuleType  # type: ignore[assignment]
        spec.loader = spec.loader.real
        spec.loader.exec_module(self)
        return getattr(self, name)
