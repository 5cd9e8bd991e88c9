"""What was compiled or measured for this computer, kept in a folder between runs.

A file is named after everything that its content depends on and holds a digest of itself: one that is
damaged, of another version or for another processor is never used, and neither is one that somebody else
could have written. Where nothing can be kept, kernels are compiled and types measured each time.
"""

import hashlib
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

_MAGIC = b"tui-chat kernel 1\n"
_SUFFIX = ".kernel"
_OLDEST_SECONDS = 90 * 86400
_OTHERS_WRITE = 0o022

_folder: Path | None = None


def keep_in(folder: Path | None) -> None:
    """Keep what this process makes in `folder`, made when it is needed; None: nowhere."""
    global _folder
    _folder = folder


def find(key: str) -> bytes | None:
    """What was kept under `key`, or None; what is found is kept on."""
    if _folder is None:
        return None
    path = _path(_folder, key)
    try:
        with path.open("rb") as file:
            if not _is_private(os.fstat(file.fileno())):
                return None
            content = file.read()
    except OSError:
        return None
    head = len(_MAGIC) + hashlib.sha256().digest_size
    made = content[head:]
    if content[:head] != _head(key, made):
        return None
    with suppress(OSError):
        os.utime(path)
    return made


def keep(key: str, made: bytes) -> None:
    """Keep `made` under `key` if the folder can be written; readers see all of it or nothing."""
    if _folder is None:
        return
    with suppress(OSError):
        _folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=_folder)
        written = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_head(key, made) + made)
            written.replace(_path(_folder, key))
        except BaseException:
            written.unlink()
            raise
        _drop_old(_folder)


def _path(folder: Path, key: str) -> Path:
    return folder / (hashlib.sha256(key.encode()).hexdigest()[:32] + _SUFFIX)


def _head(key: str, made: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(key.encode() + b"\0" + made).digest()


def _is_private(status: os.stat_result) -> bool:
    """Whether nobody but this user could have written a file; Windows keeps the folder itself private."""
    if not hasattr(os, "geteuid"):
        return True
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_WRITE


def _drop_old(folder: Path) -> None:
    """Remove what earlier versions left: no run has found it for a season."""
    oldest = time.time() - _OLDEST_SECONDS
    for path in folder.glob(f"*{_SUFFIX}"):
        with suppress(OSError):
            if path.stat().st_mtime < oldest:
                path.unlink()
