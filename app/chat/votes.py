"""How a reader found an answer against another one; both of them keep it."""

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.chat.conversation import MessageNode


class Vote(StrEnum):
    """What an answer is against another."""

    BETTER = "better"
    WORSE = "worse"
    EVEN = "even"


_TURNED = {Vote.BETTER: Vote.WORSE, Vote.WORSE: Vote.BETTER, Vote.EVEN: Vote.EVEN}


def vote(node: "MessageNode", other: "MessageNode", said: Vote) -> None:
    """Note what an answer is against another; the same again takes that back."""
    taken_back = vote_on(node, other) is said
    for one, against, mine in ((node, other, said), (other, node, _TURNED[said])):
        # Another thread may be saving what is there.
        votes = {key: value for key, value in one.votes.items() if key != against.id}
        one.votes = votes if taken_back else votes | {against.id: mine}


def vote_on(node: "MessageNode", other: "MessageNode") -> Vote | None:
    """Return what an answer is against another, None where nobody has said; one of them knows it at least."""
    mine, theirs = node.votes.get(other.id), other.votes.get(node.id)
    return mine or (_TURNED[theirs] if theirs is not None else None)


def read_votes(record: Any) -> dict[str, Vote] | None:
    """Return votes out of a file by the ids of the other answers; None for what are none."""
    if not isinstance(record, dict) or not _are_votes(record.values()):
        return None
    return {str(key): Vote(value) for key, value in record.items()}


def _are_votes(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) and value in set(Vote) for value in values)
