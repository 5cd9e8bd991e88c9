"""How many draft tokens a pass takes where it is captured: it costs what its size costs, full or not.

So draft tokens fill a size, and it is the sizes that are compared.
"""

from collections.abc import Sequence
from typing import NamedTuple

from engine.scheduler.buckets import VERIFY_TOKENS
from engine.speculation.proposer import Proposer

LEAST_CHANCE = 0.05
"""Least chance of being accepted for which a token is drafted where that costs nothing more."""


class Prices(NamedTuple):
    """Milliseconds."""

    plain_ms: float
    """Of the tick without drafts."""
    token_ms: float
    """Of each token by which a pass is larger."""
    gap_ms: float
    """That the device waits between ticks which are not queued ahead."""
    plain_tokens: int
    """Of the pass without drafts, padding included."""

    @property
    def gap_ticks(self) -> float:
        """The wait, in ticks without drafts."""
        return self.gap_ms / self.plain_ms

    def extra_ms(self, tokens: int) -> float:
        """By which a tick with a pass of so many tokens is longer."""
        return max(0, tokens - self.plain_tokens) * self.token_ms + self.gap_ms


class Choice(NamedTuple):
    """Draft tokens of a tick."""

    counts: list[int]
    """By row."""
    gain_ticks: float
    """What is expected to be saved, in ticks without drafts."""
    cost_ticks: float
    """What is lost if all are wrong."""


def choose(proposers: Sequence[Proposer], prices: Prices, most: int, margin: float) -> Choice | None:
    """The pass of at most `most` tokens that gives most per millisecond; None if drafting does not pay.

    It must give `margin` times the tokens of the tick without drafts, and no row may lose more than
    its ledger holds.
    """
    best: Choice | None = None
    rows = len(proposers)
    least = margin * rows / prices.plain_ms
    for size in VERIFY_TOKENS:
        if not rows < size <= most:
            continue
        counts, expected = _share(proposers, size - rows)
        extra_ms = prices.extra_ms(size)
        rate = (rows + expected) / (prices.plain_ms + extra_ms)
        total = sum(counts)
        cost = extra_ms / prices.plain_ms
        if rate <= least or any(g.credit * total < cost * n for g, n in zip(proposers, counts, strict=True)):
            continue
        best, least = Choice(counts, expected / rows - cost, cost), rate
    return best


def _share(proposers: Sequence[Proposer], room: int) -> tuple[list[int], float]:
    """(draft tokens by row, how many of them should be accepted): the likeliest first."""
    counts, expected = [0] * len(proposers), 0.0
    chances = [proposer.chance for proposer in proposers]
    for _ in range(room):
        likeliest = max(chances)
        if likeliest < LEAST_CHANCE:
            break
        row = chances.index(likeliest)
        counts[row] += 1
        expected += likeliest
        chances[row] = likeliest * proposers[row].chance
    return counts, expected
