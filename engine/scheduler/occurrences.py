"""How often tokens stand in a sequence's text, counted as it grows: a token costs the same after many."""

from array import array
from collections.abc import Sequence


class Occurrences:
    """Every token of a text once, in the order of its first place, and how often it stands in the answer."""

    def __init__(self, answer_start: int) -> None:
        """answer_start: the place of the answer's first token; those before it are the prompt's."""
        self._answer_start = answer_start
        self._seen = 0
        self._places: dict[int, int] = {}
        self.tokens = array("q")
        self.answered = array("q")
        """How often each of `tokens` stands in the answer."""

    def follow(self, token_ids: Sequence[int]) -> None:
        """Count what a text has more than when it was last counted; it only grows."""
        for place in range(self._seen, len(token_ids)):
            self._count(token_ids[place], place >= self._answer_start)
        self._seen = len(token_ids)

    def with_tokens(self, token_ids: Sequence[int]) -> "Occurrences":
        """A copy that has also counted tokens of the answer behind the text."""
        copy = Occurrences(self._answer_start)
        copy._seen, copy._places = self._seen, dict(self._places)
        copy.tokens, copy.answered = self.tokens[:], self.answered[:]
        for token in token_ids:
            copy._count(token, answered=True)
        return copy

    def _count(self, token: int, answered: bool) -> None:
        place = self._places.setdefault(token, len(self.tokens))
        if place == len(self.tokens):
            self.tokens.append(token)
            self.answered.append(0)
        self.answered[place] += answered
