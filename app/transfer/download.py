"""One file from a server into its `.part`: goes on where it was, survives cuts, and is checked."""

import hashlib
import http.client
import os
import re
from collections.abc import Callable
from contextlib import closing
from typing import BinaryIO

from app.transfer.errors import FetchError, cut_error, disk_error, host_of, wrong_contents
from app.transfer.parts import Notes, Part
from app.transfer.plan import GGUF, RemoteFile
from app.transfer.web import Stop, Web, split_login

_BLOCK = 1 << 18
_WAITS = (0.5, 2.0, 5.0, 10.0, 20.0)
_LONGEST_WAIT = 60.0
"""A server that asks to wait longer than this is not waited for."""
_NO_SUCH_RANGE = 416
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class Download:
    """Fetches one file.

    on_bytes: told how many bytes of it are there, and how many of them have just come; on_wait: why nothing
    comes, and "" when it goes on.
    """

    def __init__(
        self,
        file: RemoteFile,
        part: Part,
        what: str,
        *,
        web: Web,
        stop: Stop,
        on_bytes: Callable[[int, int], None],
        on_wait: Callable[[str], None],
    ) -> None:
        self._file, self._part, self._what = file, part, what
        self._web, self._stop = web, stop
        self._on_bytes, self._on_wait = on_bytes, on_wait
        self._size = file.size
        self._done = 0
        self._digest = hashlib.sha256()
        self._address = split_login(file.url)[0]

    def run(self) -> None:
        """Bring the part to its end and check it.

        Raises `FetchError`, after which the part can be gone on with unless it was found to be wrong, and
        `Stopped`.
        """
        try:
            with self._part.open() as out:
                self._take_up(out)
                self._fetch(out)
                out.flush()
                os.fsync(out.fileno())
        except OSError as error:
            self._stop.check()
            raise disk_error(error, self._part.path.parent) from error
        self._check()

    def _take_up(self, out: BinaryIO) -> None:
        """Read what is there already, if the rest can be added to it."""
        notes = self._part.notes()
        if notes is None or not self._continues(notes):
            self._restart(out)
            return
        self._size = notes.size if self._size is None else self._size
        if self._size is not None and self._part.done > self._size:
            self._restart(out)
            return
        while block := out.read(_BLOCK):
            self._stop.check()
            self._take(block, received=False)

    def _continues(self, notes: Notes) -> bool:
        file = self._file
        if file.sha256 is not None:
            return notes.sha256 == file.sha256
        known = file.size is None or notes.size is None or file.size == notes.size
        return known and notes.sha256 is None and notes.validator is not None

    def _restart(self, out: BinaryIO) -> None:
        out.seek(0)
        out.truncate()
        self._digest, self._done, self._size = hashlib.sha256(), 0, self._file.size
        self._on_bytes(0, 0)

    def _take(self, block: bytes, *, received: bool = True) -> None:
        self._digest.update(block)
        self._done += len(block)
        self._on_bytes(self._done, len(block) if received else 0)

    def _fetch(self, out: BinaryIO) -> None:
        """Ask as often as it takes; give up when several attempts in a row bring nothing new."""
        started = furthest = self._done
        failures = 0
        while self._size is None or self._done < self._size:
            try:
                self._transfer(out)
                return
            except FetchError as error:
                failures = 0 if self._done > furthest else failures + 1
                furthest = max(furthest, self._done)
                interrupted = error.unreachable and furthest > started
                if not (error.again or interrupted) or failures > len(_WAITS):
                    raise
                wait = error.wait if error.wait is not None else _WAITS[max(0, failures - 1)]
                if wait > _LONGEST_WAIT:
                    raise
                self._on_wait(f"{error}".partition(";")[0])
                self._stop.wait(wait)
                self._on_wait("")

    def _transfer(self, out: BinaryIO) -> None:
        """One request, and all that it brings."""
        try:
            answer = self._ask()
        except FetchError as error:
            if error.status != _NO_SUCH_RANGE or not self._done:
                raise
            self._restart(out)
            answer = self._ask()
        with closing(answer):
            if self._done and not self._goes_on(answer):
                self._restart(out)
            self._note(answer)
            while block := self._read(answer):
                if self._done == 0:
                    block = self._beginning(block, answer)
                out.write(block)
                self._take(block)
                if self._size is not None and self._done > self._size:
                    self._part.forget()
                    raise FetchError(f"{host_of(self._address)} sends more than it said; try another source")
        if self._size is not None and self._done < self._size:
            raise cut_error(self._address)

    def _read(self, answer: http.client.HTTPResponse) -> bytes:
        """The next bytes, as soon as some are there; b"" at the end."""
        try:
            block = answer.read1(_BLOCK)
        except (OSError, http.client.HTTPException) as error:
            self._stop.check()
            raise cut_error(self._address) from error
        self._stop.check()
        return block

    def _ask(self) -> http.client.HTTPResponse:
        headers = dict(self._file.headers)
        notes = self._part.notes() if self._done else None
        if notes is not None and self._file.sha256 is not None:
            headers["Range"] = f"bytes={self._done}-"
        elif notes is not None and notes.validator is not None:
            # Without a checksum the server has to say that its file is still the same.
            headers |= {"Range": f"bytes={self._done}-", "If-Range": notes.validator}
        return self._web.get(self._file.url, headers, login=self._file.login)

    def _goes_on(self, answer: http.client.HTTPResponse) -> bool:
        """Whether the server sends the rest; otherwise it sends everything."""
        if answer.status != 206:
            return False
        given = _RANGE.match(answer.headers.get("Content-Range", ""))
        if given is None or int(given[1]) != self._done:
            raise FetchError(
                f"{host_of(self._address)} sends another piece than it was asked for; try another source"
            )
        return True

    def _note(self, answer: http.client.HTTPResponse) -> None:
        """Learn the whole size, and write down what is being fetched."""
        total = _total(answer)
        if total is not None and self._size is not None and total != self._size:
            raise FetchError(
                f"{host_of(self._address)} sends {self._file.name} with {total:,} bytes, not {self._size:,}: "
                "the file has changed; fetch it again, or from another source"
            )
        self._size = total if self._size is None else self._size
        headers = answer.headers
        self._part.keep(
            Notes(
                self._what, self._size, self._file.sha256, headers.get("ETag"), headers.get("Last-Modified")
            )
        )

    def _beginning(self, block: bytes, answer: http.client.HTTPResponse) -> bytes:
        """The first bytes, of which a web page or an error in words is told from a file."""
        magic = self._file.magic
        while len(block) < len(magic) and (more := self._read(answer)):
            block += more
        if not block.startswith(magic):
            kind = answer.headers.get_content_type()
            wanted = "a GGUF file" if magic == GGUF else f"what {self._file.name} should be"
            self._part.forget()
            raise FetchError(f"{host_of(self._address)} sends {kind}, not {wanted}; check the address")
        return block

    def _check(self) -> None:
        file = self._file
        found = self._digest.hexdigest()
        if file.sha256 is not None and found != file.sha256:
            self._part.forget()
            raise wrong_contents(file.name, found, file.sha256)


def _total(answer: http.client.HTTPResponse) -> int | None:
    """The size of the whole file, of which an answer may hold the rest."""
    if answer.status == 206:
        given = _RANGE.match(answer.headers.get("Content-Range", ""))
        return int(given[2]) if given is not None and given[2] != "*" else None
    length = answer.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None
