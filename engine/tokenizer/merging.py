"""Merging neighbouring symbols, the best pair first: what BPE and SentencePiece vocabularies share."""

import heapq
from collections.abc import Callable, Container, Sequence

PairRank = Callable[[str, str], float | None]
"""How early two neighbours merge (the lowest first), None when they never do."""
_PIECE = 1 << 12
"""Merges at a time."""


def merge_symbols(text: str, rank: PairRank) -> list[str]:
    """The characters of `text` merged until no pair is left; equal ranks go from left to right.

    Takes O(n log n) for n characters.
    """
    symbols = list(text)
    count = len(symbols)
    before = list(range(-1, count - 1))
    after = list(range(1, count + 1))
    heap: list[tuple[float, int, int, int]] = []
    for i in range(count - 1):
        found = rank(symbols[i], symbols[i + 1])
        if found is not None:
            heap.append((found, i, i + 1, 2))
    heapq.heapify(heap)
    while heap:
        _, left, right, size = heapq.heappop(heap)
        if not symbols[left] or not symbols[right] or len(symbols[left]) + len(symbols[right]) != size:
            continue
        symbols[left] += symbols[right]
        symbols[right] = ""
        follower = after[left] = after[right]
        if follower < count:
            before[follower] = left
        for a, b in ((before[left], left), (left, follower)):
            if a >= 0 and b < count:
                found = rank(symbols[a], symbols[b])
                if found is not None:
                    heapq.heappush(heap, (found, a, b, len(symbols[a]) + len(symbols[b])))
    return [symbol for symbol in symbols if symbol]


def rank_of_merges(merges: Sequence[str], texts: Container[str]) -> PairRank:
    """By place in a list of merges such as "a b"; those whose joint text is none of `texts` never apply."""
    ranks: dict[str, int] = {}
    # Backwards, so that of equal merges the first counts; in pieces, since one call for all of them holds the
    # interpreter for tens of milliseconds while others answer.
    for end in range(len(merges), 0, -_PIECE):
        first = max(0, end - _PIECE)
        ranks.update(zip(reversed(merges[first:end]), range(end - 1, first - 1, -1), strict=True))

    def rank(left: str, right: str) -> int | None:
        found = ranks.get(f"{left} {right}")
        return found if found is not None and left + right in texts else None

    return rank
