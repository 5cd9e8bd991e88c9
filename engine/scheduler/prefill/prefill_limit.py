"""Most prompt tokens of a tick: fewer for a while after the device had no memory for a pass.

What a pass needs beside KV grows with its tokens. A pass without memory is run again in smaller parts,
which costs time; so the next ones are planned smaller, and grow again with passes that succeed.

Beside rows that decode, what a first chunk costs is not well known: the last chunks that were measured
stood at other places of other prompts. So a tick reads at most twice what the one before it read, and
the estimate is right before chunks are large.
"""

LEAST = 16
"""Tokens that are read at a time in any case."""

FIRST = 120
"""Tokens of the first chunk beside rows that decode: with these, a short pass."""

PASSES = 32
"""Passes that must succeed before twice as many tokens are tried again."""


class PrefillLimit:
    """How many prompt tokens a tick may have."""

    def __init__(self, most: int) -> None:
        self._wanted = self._most = most
        self._passes = 0
        self._beside = 0
        self.tokens = most
        """For a tick by itself."""

    def hold(self, most: int) -> None:
        """What the memory beside weights and KV is made for."""
        self._most = min(self._wanted, most)
        self.tokens = self._most

    def most(self, beside_rows: bool) -> int:
        """For the next tick."""
        return min(self.tokens, max(FIRST, 2 * self._beside)) if beside_rows else self.tokens

    def planned(self, tokens: int, beside_rows: bool) -> None:
        """A tick with so many prompt tokens is to run, maybe with none."""
        self._beside = tokens if beside_rows else 0

    def short(self, tokens: int) -> None:
        """There was no memory for a pass with so many prompt tokens."""
        if tokens > 0:
            self.tokens = min(self._most, max(LEAST, min(self.tokens, tokens) // 2))
            self._passes = 0

    def passed(self, chunks: int) -> None:
        """A pass with so many chunks is done; one without says nothing."""
        self._passes += chunks > 0
        if self.tokens < self._most and self._passes >= PASSES:
            self.tokens = min(self._most, 2 * self.tokens)
            self._passes = 0
