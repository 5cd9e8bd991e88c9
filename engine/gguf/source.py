"""Opening a model file safely, and reading numbers and strings from it within its bounds.

Nothing here trusts the file: the kind of file is checked before it is opened, every read is checked
against the file's size, and every error names file, field and byte offset.
"""

import mmap
import os
import stat
import struct
from pathlib import Path
from typing import NoReturn

import numpy as np

from engine.api.errors import ModelFileError

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Source:
    """A read-only map of one file, with its name for error messages.

    The map shows the file as it is now. A file that another program shortens afterwards cannot be
    read safely by anybody who maps it (the system ends the process), so replace model files by
    renaming, never by writing into them.
    """

    __slots__ = ("bytes", "map", "path", "size")

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.map = data
        self.size = len(data)
        self.bytes: np.ndarray = np.frombuffer(data, dtype=np.uint8)

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
        value: int = _U32.unpack_from(self.map, offset)[0]
        return value

    def u64(self, field: str, offset: int) -> int:
        """The unsigned 64-bit integer at `offset`."""
        self.need(field, offset, 8)
        value: int = _U64.unpack_from(self.map, offset)[0]
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
            return self.map[offset + 8 : end].decode(), end
        except UnicodeDecodeError:
            self.fail(field, offset + 8, "is not valid UTF-8; the file is damaged")


def open_source(path: str | Path) -> Source:
    """Map a regular file for reading.

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
    try:
        status = os.fstat(descriptor)
        _require_regular(path, status)
        if status.st_size == 0:
            raise ModelFileError(f"{path}: the file is empty (0 bytes); download it again.")
        return Source(path, mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path}: cannot be mapped into memory: {_reason(error)}.") from error
    finally:
        os.close(descriptor)


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) else None
    return (text or str(error) or type(error).__name__).lower()


def _require_regular(path: Path, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise ModelFileError(f"{path}: is a folder; name a .gguf file in it.")
    if not stat.S_ISREG(status.st_mode):
        raise ModelFileError(f"{path}: is not a regular file (a pipe, socket or device); name a .gguf file.")
