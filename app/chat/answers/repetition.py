"""Noticing that an answer repeats itself: the same tokens or the same line over and over.

Each token costs a few steps, however long the answer is. What has no letters in it is no repetition: rows
of `|---|`, blank lines, indentation, braces, numbers. Code and tables may repeat themselves more often.
"""

from collections import deque

LEAST_TOKENS = 8
TIMES = 4
LINES = 10
PATIENCE = 4
"""How many times as often code and rows of tables may repeat themselves."""
_WINDOW = 4096
"""Tokens that are looked back: a longer text is not found to be repeated."""
_BASE, _PRIME = 1_000_003, (1 << 61) - 1
_LEAVING = pow(_BASE, LEAST_TOKENS - 1, _PRIME)
_FENCES = ("```", "~~~")


class RepetitionWatch:
    """Watches one answer's tokens and lines."""

    def __init__(self) -> None:
        self._tokens = _TokenRuns()
        self._lines = _LineRuns()

    def allow(self) -> None:
        """Let be what is being repeated now, until something else comes."""
        self._tokens.allowed = self._tokens.running
        self._lines.allowed = True

    def take(self, token_ids: tuple[int, ...], text: str) -> bool:
        """Take the next piece; tell whether the answer repeats itself with it."""
        self._lines.take(text)
        patience = PATIENCE if self._lines.in_code else 1
        # Every id is taken, whatever the line says.
        repeated = [self._tokens.take(token_id, text, patience) for token_id in token_ids]
        return any(repeated) or self._lines.repeated(patience)


class _TokenRuns:
    """Finds the distance at which tokens come again: that of the last eight tokens' last occurrence."""

    def __init__(self) -> None:
        self._ids: deque[int] = deque(maxlen=_WINDOW)
        self._grams: dict[int, int] = {}
        self._places: deque[int] = deque()
        self._hash = 0
        self._count = 0
        self._last_word = -_WINDOW
        """Number of the last token with a letter in it."""
        self._distance = self._run = 0
        self.allowed = False

    @property
    def running(self) -> bool:
        """Whether the newest tokens stood somewhere before."""
        return self._distance > 0

    def take(self, token_id: int, text: str, patience: int) -> bool:
        """Take a token; tell whether it makes a repetition whole."""
        self._step(token_id)
        if any(map(str.isalpha, text)):
            self._last_word = self._count
        if not self._distance or self.allowed:
            return False
        unit = self._distance * -(-LEAST_TOKENS // self._distance)
        worded = self._count - self._last_word < unit
        return worded and self._run + self._distance >= unit * TIMES * patience

    def _step(self, token_id: int) -> None:
        ids = self._ids
        repeats = 0 < self._distance <= len(ids) and ids[-self._distance] == token_id
        self._roll(token_id)
        ids.append(token_id)
        self._count += 1
        if repeats:
            self._run += 1
        elif self._distance:
            self._distance = self._run = 0
            self.allowed = False
        self._look_up()

    def _roll(self, token_id: int) -> None:
        if self._count >= LEAST_TOKENS:
            self._hash -= (self._ids[-LEAST_TOKENS] + 1) * _LEAVING
        self._hash = (self._hash * _BASE + token_id + 1) % _PRIME

    def _look_up(self) -> None:
        """Find where the last eight tokens stood before, and remember where they stand now."""
        if self._count < LEAST_TOKENS:
            return
        last = self._grams.get(self._hash)
        distance = 0 if last is None else self._count - last
        if not self._distance and distance and self._same(distance):
            self._distance, self._run = distance, LEAST_TOKENS
        self._grams[self._hash] = self._count
        self._places.append(self._hash)
        if len(self._places) > _WINDOW - LEAST_TOKENS:
            oldest = self._places.popleft()
            if self._grams.get(oldest) == self._count - len(self._places):
                del self._grams[oldest]

    def _same(self, distance: int) -> bool:
        """Whether the last eight tokens stand that far before, too: hashes may be equal by chance."""
        if distance + LEAST_TOKENS > len(self._ids):
            return False
        return all(self._ids[-place] == self._ids[-place - distance] for place in range(1, LEAST_TOKENS + 1))


class _LineRuns:
    """Counts how often one line came in a row, blank ones left out."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._last = ""
        self._times = 0
        self._fence = ""
        self.allowed = False

    @property
    def in_code(self) -> bool:
        """Whether the last whole line stands in a code block or a table."""
        return bool(self._fence) or self._last.startswith("|")

    def take(self, text: str) -> None:
        """Take the next text."""
        first, *others = text.split("\n")
        self._parts.append(first)
        for line in others:
            self._end("".join(self._parts).strip())
            self._parts = [line]

    def repeated(self, patience: int) -> bool:
        """Tell whether the last whole line came too often."""
        return self._times >= LINES * patience and not self.allowed

    def _end(self, line: str) -> None:
        if not line:
            return
        if line.startswith(_FENCES) and self._fence in ("", line[:3]):
            self._fence = "" if self._fence else line[:3]
        if not any(map(str.isalpha, line)):
            self._times = 0
        elif line == self._last:
            self._times += 1
            return
        else:
            self._times = 1
        self._last, self.allowed = line, False
