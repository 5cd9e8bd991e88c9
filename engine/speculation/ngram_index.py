"""Where the last tokens of a text stood before: what followed there is a proposal for what comes next.

Chains of equal pairs, as in LZ77 (Ziv and Lempel 1977): a pair of tokens leads to its last place, each
place to the one before it.
"""

from collections.abc import Sequence as TokenIds

LONGEST = 16
"""Tokens of a match that are compared; more make it no likelier that the text goes on alike."""

CANDIDATES = 12
"""Earlier places of a pair that are looked at, the latest first."""


class NgramIndex:
    """Finds the longest earlier match of the end of a growing list of token ids.

    The list is the caller's; the index never changes what it has seen of it.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[int, int], int] = {}
        """Pair → its last place, that of its second token."""
        self._before: list[int] = [-1]
        """Place → the same pair's place before it, or -1."""

    @property
    def seen(self) -> int:
        """Tokens that are indexed."""
        return len(self._before)

    def extend(self, token_ids: TokenIds[int], end: int) -> None:
        """Index the tokens before `end`; give only tokens that another one follows."""
        last, before = self._last, self._before
        for place in range(len(before), end):
            pair = (token_ids[place - 1], token_ids[place])
            before.append(last.get(pair, -1))
            last[pair] = place

    def match(self, token_ids: TokenIds[int]) -> tuple[int, int]:
        """(length, place after it) of the longest earlier match of the end; (0, 0) for less than a pair.

        Of equally long ones it is the latest.
        """
        end = len(token_ids) - 1
        if end < 1:
            return 0, 0
        best, after = 0, 0
        place = self._last.get((token_ids[end - 1], token_ids[end]), -1)
        for _ in range(CANDIDATES):
            if place < 0:
                break
            length = 2
            most = min(LONGEST, place + 1)
            while length < most and token_ids[place - length] == token_ids[end - length]:
                length += 1
            if length > best:
                best, after = length, place + 1
                if length == LONGEST:
                    break
            place = self._before[place]
        return best, after


def continue_from(token_ids: TokenIds[int], after: int, count: int) -> list[int]:
    """`count` tokens as they follow at `after`; a text that repeats itself goes on repeating."""
    draft = list(token_ids[after : after + count])
    period = len(token_ids) - after
    while len(draft) < count:
        draft.append(draft[-period])
    return draft
