"""Server-sent events out of the bytes of a stream; no line and no event may grow without an end."""

from collections.abc import Iterator

MOST_LINE = 1 << 20
MOST_EVENT = 4 << 20


class EventTooLongError(Exception):
    """A stream has a line or an event that no server would send."""


class EventReader:
    """Takes bytes as they come, and gives the data of every event that is whole."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[str]:
        """Take the next bytes."""
        *whole, rest = chunk.split(b"\n")
        for part in whole:
            self._hold(part)
            line = bytes(self._line).removesuffix(b"\r")
            self._line.clear()
            if line:
                self._take(line)
            else:
                yield from self._event()
        self._hold(rest)

    def end(self) -> Iterator[str]:
        """Take it that no more comes; some servers leave the last line open."""
        yield from self.feed(b"\n\n")

    def _event(self) -> Iterator[str]:
        data, self._data, self._size = self._data, [], 0
        if data:
            yield b"\n".join(data).decode("utf-8", "replace")

    def _hold(self, part: bytes) -> None:
        if len(self._line) + len(part) > MOST_LINE:
            raise EventTooLongError
        self._line += part

    def _take(self, line: bytes) -> None:
        """Take a line; comments and fields that say nothing of an answer are passed over."""
        name, _, value = line.partition(b":")
        if name != b"data":
            return
        value = value.removeprefix(b" ")
        self._size += len(value) + 1
        if self._size > MOST_EVENT:
            raise EventTooLongError
        self._data.append(value)
