"""Opening a model file safely, and reading numbers and strings from it within its bounds.

Nothing here trusts the file: the kind of file is checked before it is opened, every read is checked
against the file's size, and every error names file, field and byte offset.
"""

import os
import stat
import struct
import weakref
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import numpy as np

from engine.api.errors import ModelFileError

_WINDOW = 1 << 16
"""Bytes read at a time where few are asked for."""
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Source:
    """One open file, read where and when it is asked for, with its name for error messages.

    The file is not mapped: one that another program cuts short while it is mapped ends the process. Here
    whatever is missing then, and what the disk cannot read, is an error.
    """

    def __init__(self, path: Path, descriptor: int, status: os.stat_result) -> None:
        """Take over an open descriptor; `close` or the last reference closes it."""
        self.path = path
        self.size = status.st_size
        self._descriptor = descriptor
        self.version = (status.st_size, status.st_mtime_ns)
        self._start = 0
        self._window = b""
        """What was read last, from `_start` on."""
        self._finalizer = weakref.finalize(self, os.close, descriptor)

    def close(self) -> None:
        """Close the file."""
        self._finalizer()

    @property
    def closed(self) -> bool:
        """Whether nothing can be read any more."""
        return not self._finalizer.alive

    def read(self, offset: int, nbytes: int) -> bytes:
        """The bytes from `offset` on, fewer than `nbytes` at the file's end; by one thread at a time."""
        at = offset - self._start
        if not 0 <= at <= at + nbytes <= len(self._window):
            left = max(0, self.size - offset)
            nbytes = max(0, min(nbytes, left))
            if nbytes > _WINDOW:
                return self._fetch(offset, nbytes)
            if not 0 <= at <= len(self._window) - nbytes:
                self._window = self._fetch(offset, min(_WINDOW, left))
                self._start, at = offset, 0
        return self._window[at : at + nbytes]

    def _fetch(self, offset: int, nbytes: int) -> bytes:
        with suppress(OSError):
            whole = os.pread(self._descriptor, nbytes, offset)
            if len(whole) == nbytes:
                return whole
        fetched = np.empty(nbytes, dtype=np.uint8)
        self.read_into(fetched, "header", offset)
        return fetched.tobytes()

    def read_into(self, target: np.ndarray, field: str, offset: int) -> None:
        """Fill `target`, uint8 [n], with the bytes from `offset` on; by any number of threads."""
        view, done = target.data, 0
        while done < len(view):
            try:
                count = os.preadv(self._descriptor, [view[done:]], offset + done)
            except OSError as error:
                self.fail(field, offset + done, f"cannot be read: {_reason(error)}")
            if not count:
                self.fail(
                    field,
                    offset + done,
                    "the file ends here now; it was cut short while it was read, so wait until it is "
                    "complete or download it again",
                )
            done += count

    def check_unchanged(self) -> None:
        """Raise ModelFileError when the file was written to since it was opened."""
        status = os.fstat(self._descriptor)
        if (status.st_size, status.st_mtime_ns) != self.version:
            raise ModelFileError(
                f"{self.path}: was changed while it was read; wait until it is complete and load it again."
            )

    def fail(self, field: str, offset: int, problem: str) -> NoReturn:
        """Raise a ModelFileError that names file, field and byte offset."""
        raise ModelFileError(f"{self.path}: {field} at byte {offset}: {problem}.")

    def need(self, field: str, offset: int, nbytes: int) -> None:
        """Check that `nbytes` bytes from `offset` on lie within the file."""
        if nbytes > self.size - offset:
            self.fail(
                field,
                offset,
                f"needs {nbytes} bytes but the file ends after {max(0, self.size - offset)}; "
                "it is truncated or damaged, download it again",
            )

    def u32(self, field: str, offset: int) -> int:
        """The unsigned 32-bit integer at `offset`."""
        self.need(field, offset, 4)
        value: int = _U32.unpack(self.read(offset, 4))[0]
        return value

    def u64(self, field: str, offset: int) -> int:
        """The unsigned 64-bit integer at `offset`."""
        self.need(field, offset, 8)
        value: int = _U64.unpack(self.read(offset, 8))[0]
        return value

    def name(self, field: str, offset: int, limit: int) -> tuple[str, int]:
        """A length-prefixed, non-empty UTF-8 name of at most `limit` bytes, and the offset behind it."""
        length = self.u64(field, offset)
        if not 0 < length <= limit:
            self.fail(
                field,
                offset,
                f"has a length of {length} bytes; 1 to {limit} are allowed; download the file again",
            )
        self.need(field, offset + 8, length)
        end = offset + 8 + length
        try:
            return self.read(offset + 8, length).decode(), end
        except UnicodeDecodeError:
            self.fail(field, offset + 8, "is not valid UTF-8; the file is damaged")


def open_source(path: str | Path, *, sparsely: bool = False) -> Source:
    """Open a regular file for reading; `sparsely`: little of it, so that nothing is read ahead.

    Raises ModelFileError for a missing, empty or unreadable file, a directory, a pipe or a device;
    never waits on any of them.
    """
    path = Path(path)
    try:
        _require_regular(path, os.stat(path))  # noqa: PTH116 - errors are worded below
        # A pipe put in the file's place after the check must not block the opening.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path}: cannot be opened: {_reason(error)}.") from error
    source = Source(path, descriptor, os.fstat(descriptor))
    try:
        _require_regular(path, os.fstat(descriptor))
        if source.size == 0:
            raise ModelFileError(f"{path}: the file is empty (0 bytes); download it again.")
        if sparsely:
            _forbid_reading_ahead(descriptor)
    except BaseException:
        source.close()
        raise
    return source


def _forbid_reading_ahead(descriptor: int) -> None:
    """Else a system may read megabytes of weights behind each header, which takes longer than all else."""
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) else None
    return (text or str(error) or type(error).__name__).lower()


def _require_regular(path: Path, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise ModelFileError(f"{path}: is a folder; name a .gguf file in it.")
    if not stat.S_ISREG(status.st_mode):
        raise ModelFileError(f"{path}: is not a regular file (a pipe, socket or device); name a .gguf file.")
