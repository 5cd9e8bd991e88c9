"""Stop strings in streamed text."""

from collections.abc import Sequence


class StopMatcher:
    """Ends a stream before the first stop string, however it is spread over pieces of text.

    Only the longest suffix that could still become a stop string is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self._done = False

    def push(self, text: str) -> tuple[str, str | None]:
        """(text that is safe to show, the stop string that ended the stream or None).

        The stop string that is complete first wins; of those that end together, the one that began
        first. So the outcome does not depend on how the text is cut. After a match nothing comes out.
        """
        if self._done:
            return "", None
        if not self._stops:
            return text, None
        text = self._held + text
        found = self._first_complete(text)
        if found is not None:
            self._done, self._held = True, ""
            return text[: found[0]], found[1]
        keep = self._open_suffix(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], None

    def flush(self) -> str:
        """The text still held back when the stream ends without a stop string."""
        held, self._held = self._held, ""
        return held

    def _first_complete(self, text: str) -> tuple[int, str] | None:
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if not found:
            return None
        _, at, stop = min(found)
        return at, stop

    def _open_suffix(self, text: str) -> int:
        longest = max(map(len, self._stops)) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
