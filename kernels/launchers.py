"""What launches kernels is made by one thread at a time.

Triton loads a kernel's launcher as an extension module, and all of these have one name. Python gives a
file that is loaded again the module object that has the name now, with the file's functions put into
it: of two threads that load at once, one may get the other's launcher and keep it.
"""

import threading
from typing import Any

from triton.runtime import driver

_lock = threading.Lock()


def make_one_at_a_time() -> None:
    """Have every launcher made under one lock, for the whole process; further calls change nothing."""
    active: Any = driver.active
    with _lock:
        original = active.launcher_cls
        if getattr(original, "one_at_a_time", False):
            return

        def launcher(*arguments: Any) -> Any:
            with _lock:
                return original(*arguments)

        launcher.one_at_a_time = True  # type: ignore[attr-defined]
        active.launcher_cls = launcher
