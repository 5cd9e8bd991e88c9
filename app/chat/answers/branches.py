"""The tree of a chat's messages, a row for each stretch between its branch points."""

from collections import defaultdict
from dataclasses import dataclass

from app.chat.conversation import Conversation, MessageNode

_DEEPEST = 12
"""Branch points under each other that are drawn as such."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A stretch without branches: from a branch point, or the beginning, to the next one, or to an end."""

    first: MessageNode
    last: MessageNode
    messages: int
    guide: str
    """What is drawn in front of it."""
    shown: bool
    """Whether it is a part of what the chat shows."""


def branches_of(conversation: Conversation) -> list[Branch]:
    """Return all branches from the top of the tree, each before those that it parts into."""
    children: defaultdict[str | None, list[MessageNode]] = defaultdict(list)
    for node in conversation.nodes.values():
        children[node.parent].append(node)
    shown = {node.id for node in conversation.path()}
    rows: list[Branch] = []
    waiting = _below(children[None], "", 0)
    while waiting:
        first, guide, below, depth = waiting.pop()
        last, messages = first, 1
        while len(children[last.id]) == 1:
            last, messages = children[last.id][0], messages + 1
        rows.append(Branch(first, last, messages, guide, first.id in shown))
        waiting += _below(children[last.id], below, depth + 1)
    return rows


_Waiting = tuple[MessageNode, str, str, int]


def _below(nodes: list[MessageNode], guide: str, depth: int) -> list[_Waiting]:
    """What waits below a branch point, the first last: node, its guide, the guide of those below, depth."""
    if (depth == 0 and len(nodes) == 1) or depth > _DEEPEST:
        return [(node, guide, guide, depth) for node in reversed(nodes)]
    found = [(node, f"{guide}├─ ", f"{guide}│  ", depth) for node in nodes[:-1]]
    found += [(node, f"{guide}└─ ", f"{guide}   ", depth) for node in nodes[-1:]]
    return found[::-1]
