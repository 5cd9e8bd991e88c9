"""The kept chats, for commands: the history as long as it is needed, and the chat that a word means."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from app.cli.common import CommandError, say
from app.history.naming import chats_named
from app.history.statements import ConversationSummary
from app.history.store import HistoryStore
from app.settings.paths import locations

EVERY_CHAT = 1_000_000
_MOST_NAMED = 5


@contextmanager
def opened_history(missing: Literal["refuse", "create", "pretend"] = "refuse") -> Iterator[HistoryStore]:
    """Give the history; an error where it cannot be used or not all could be saved.

    missing: what becomes of a history that is not there; `pretend` gives one in memory.
    """
    path = locations().history_file
    there = path.exists()
    if missing == "refuse" and not there:
        raise CommandError("no chat is kept yet")
    where = path if there or missing == "create" else None
    history = HistoryStore(where, on_warning=say, visiting=True)
    saved = True
    try:
        history.flush()
        if history.standing:
            raise CommandError(f"{path}: {history.standing[-1].partition('. ')[0]}")
        for notice in history.notices:
            say(notice)
        yield history
    finally:
        saved = history.close()
    if not saved:
        raise CommandError(f"{path}: not everything could be saved")


def every_chat(history: HistoryStore) -> list[ConversationSummary]:
    """Return all chats, archived ones too, the last changed first."""
    return sorted(history.search("#all", EVERY_CHAT), key=lambda chat: -chat.updated)


def named_chat(history: HistoryStore, word: str) -> ConversationSummary:
    """Return the chat that a word means; an error that names them where it means several."""
    found = chats_named(word, every_chat(history))
    if not found:
        raise CommandError(f"no chat has “{word}” in its title; Ctrl+L in the app searches what chats say")
    if len(found) > 1:
        names = ", ".join(f"“{chat.title}” ({chat.id[:8]})" for chat in found[:_MOST_NAMED])
        more = f" and {len(found) - _MOST_NAMED:,} more" if len(found) > _MOST_NAMED else ""
        raise CommandError(
            f"“{word}” means {len(found):,} chats: {names}{more}; write more of the title, or the id"
        )
    return found[0]


def last_chat(history: HistoryStore) -> ConversationSummary:
    """Return the chat that was changed last."""
    found = every_chat(history)
    if not found:
        raise CommandError("no chat is kept yet")
    return found[0]
