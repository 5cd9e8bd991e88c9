"""Keeps file descriptors 1 and 2 away from libraries while the screen belongs to the app.

Native code (torch, CUDA, OpenMP) prints to the descriptors, not to `sys.stdout`; one such line would
tear the picture. The terminal stays reachable through duplicates that `sys.__stdout__` and
`sys.__stderr__` become; what is printed meanwhile goes to the log file.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from app.terminal.log_file import open_log


@contextlib.contextmanager
def guarded_descriptors(log_file: Path) -> Iterator[None]:
    """Send descriptors 1 and 2 to the end of `log_file`, or to nowhere, inside the block."""
    sys.stdout.flush()
    sys.stderr.flush()
    before = (sys.__stdout__, sys.__stderr__)
    kept = (os.dup(1), os.dup(2))
    try:
        log = open_log(log_file)
    except OSError:
        log = os.open(os.devnull, os.O_WRONLY)
    # `tui-chat 2>file` must still draw on the terminal.
    screens = [fd for fd in kept if os.isatty(fd)]
    targets = kept if len(screens) != 1 else (screens[0], screens[0])
    terminals = [os.fdopen(os.dup(fd), "w", encoding="utf-8", errors="replace") for fd in targets]
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    sys.__stdout__, sys.__stderr__ = terminals  # type: ignore[misc]
    try:
        yield
    finally:
        for terminal in terminals:
            with contextlib.suppress(OSError, ValueError):
                terminal.flush()
        sys.__stdout__, sys.__stderr__ = before  # type: ignore[misc]
        for target, fd in zip((1, 2), kept, strict=True):
            os.dup2(fd, target)
            os.close(fd)
        for terminal in terminals:
            with contextlib.suppress(OSError):
                terminal.close()
