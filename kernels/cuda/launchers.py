"""Threads that load launchers of kernels at once get each their own.

Triton loads a kernel's launcher as an extension module, and all of these have one name. Python gives a
file that is loaded again the module object that has the name now, with the file's functions put into
it: of two threads that load at once, one may get the other's launcher and keep it. So modules are
loaded by one thread at a time, and what is handed out are the functions that were there then.
"""

import threading
from types import SimpleNamespace
from typing import Any

from triton.runtime import build, driver

_lock = threading.Lock()


def load_one_at_a_time() -> None:
    """Change how Triton loads modules, for the whole process; further calls change nothing."""
    target: Any = build
    with _lock:
        original = target._load_module_from_path
        if getattr(original, "one_at_a_time", False):
            return

        def load(name: str, path: str) -> Any:
            with _lock:
                return SimpleNamespace(**vars(original(name, path)))

        load.one_at_a_time = True  # type: ignore[attr-defined]
        target._load_module_from_path = load


def check_launchers() -> None:
    """Raise ImportError where Triton cannot build or load what launches kernels, such as without gcc."""
    try:
        assert driver.active.utils is not None
    except Exception as error:  # compilers and loaders raise errors of many kinds
        raise ImportError(f"launchers of kernels cannot be built: {error}") from None
