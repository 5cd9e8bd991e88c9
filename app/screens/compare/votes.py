"""Which of two answers the reader found better, while the app runs."""

from enum import StrEnum


class Vote(StrEnum):
    """The better one of two answers."""

    LEFT = "left"
    RIGHT = "right"
    EVEN = "even"


_TURNED = {Vote.LEFT: Vote.RIGHT, Vote.RIGHT: Vote.LEFT, Vote.EVEN: Vote.EVEN}


class Votes:
    """One vote for each pair of answers, whichever of them stands on the left."""

    def __init__(self) -> None:
        self._votes: dict[tuple[str, str], Vote] = {}

    def vote(self, left: str, right: str, vote: Vote) -> None:
        """Take a vote on two answers; the same again takes it back."""
        if self.of(left, right) is vote:
            del self._votes[min((left, right), (right, left))]
        else:
            self._votes[min((left, right), (right, left))] = vote if left <= right else _TURNED[vote]

    def of(self, left: str, right: str) -> Vote | None:
        """Return the vote on two answers."""
        vote = self._votes.get(min((left, right), (right, left)))
        return vote if vote is None or left <= right else _TURNED[vote]
