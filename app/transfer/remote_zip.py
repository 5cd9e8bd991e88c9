"""A zip archive on a server, of which only what is asked for is fetched."""

import io
import re
from contextlib import closing

from app.transfer.errors import FetchError, host_of
from app.transfer.plan import RemoteFile
from app.transfer.web import Web, read_body

_PIECE = 1 << 16
_TOTAL = re.compile(r"bytes \d+-\d+/(\d+)")


class NoRanges(FetchError):
    """The server sends whole files only."""


class RangeReader(io.RawIOBase):
    """A remote file of `size` bytes to read from and seek in; one piece is kept, and read from again."""

    def __init__(self, file: RemoteFile, web: Web) -> None:
        super().__init__()
        self._file, self._web = file, web
        self._position = self._start = 0
        self._piece = b""
        self.size = file.size if file.size is not None else self._find_size()
        # The directory of an archive is at its end, and a wheel's description right before.
        self._fetch(max(0, self.size - _PIECE), self.size)

    def readable(self) -> bool:
        """It can be read."""
        return True

    def seekable(self) -> bool:
        """It can be sought in."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move; nothing is fetched."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        if start + offset < 0:
            raise OSError("there is nothing before the beginning of a file")
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        """The position."""
        return self._position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill the buffer as far as the piece at hand reaches, fetching one if need be."""
        end = min(self._position + len(buffer), self.size)
        if self._position >= end:
            return 0
        if not self._start <= self._position < self._start + len(self._piece):
            self._fetch(self._position, min(self.size, max(end, self._position + _PIECE)))
        skipped = self._position - self._start
        taken = self._piece[skipped : skipped + end - self._position]
        buffer[: len(taken)] = taken
        self._position += len(taken)
        return len(taken)

    def _fetch(self, start: int, end: int) -> None:
        with closing(self._web.get(self._file.url, {"Range": f"bytes={start}-{end - 1}"})) as answer:
            if answer.status != 206:
                raise NoRanges(f"{host_of(self._file.url)} sends whole files only")
            self._piece, self._start = read_body(answer, end - start), start
        if len(self._piece) != end - start:
            raise FetchError(
                f"{host_of(self._file.url)} sends less than it was asked for; try another source"
            )

    def _find_size(self) -> int:
        with closing(self._web.get(self._file.url, {"Range": "bytes=0-0"})) as answer:
            total = _TOTAL.match(answer.headers.get("Content-Range", ""))
        if answer.status != 206 or total is None:
            raise NoRanges(f"{host_of(self._file.url)} sends whole files only")
        return int(total[1])
