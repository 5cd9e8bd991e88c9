"""Finding a chat by what someone remembers of its title."""

from collections.abc import Sequence

from app.history.statements import ConversationSummary
from app.settings.fuzzy import fit_score

_SHORTEST_ID = 6


def chats_named(word: str, chats: Sequence[ConversationSummary]) -> list[ConversationSummary]:
    """Return the chats that a word means, of several kinds of likeness those of the closest that any has.

    They are: the beginning of an id, the title itself, every word in the title, its letters in order.
    """
    wanted = " ".join(word.casefold().split())
    if not wanted:
        return []
    titles = [" ".join(chat.title.casefold().split()) for chat in chats]
    kinds = (
        [chat for chat in chats if len(wanted) >= _SHORTEST_ID and chat.id.startswith(wanted)],
        [chat for chat, title in zip(chats, titles, strict=True) if title == wanted],
        [
            chat
            for chat, title in zip(chats, titles, strict=True)
            if all(part in title for part in wanted.split())
        ],
        [chat for chat, title in zip(chats, titles, strict=True) if fit_score(wanted, title)],
    )
    return next((found for found in kinds if found), [])
