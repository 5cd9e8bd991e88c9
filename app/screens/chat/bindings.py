"""The keys of the chat screen, made of the actions."""

from textual.binding import Binding

from app.settings.actions import ACTIONS

NO_KEY = "none"
"""Stands for the key of an action that has none: the reader may give it one."""


def bindings() -> list[Binding]:
    """Return the chat screen's bindings; they go before the composer's, which would take PgUp and PgDn."""
    made = [
        Binding(
            action.keys or NO_KEY,
            action.id,
            action.title,
            show=False,
            priority=action.id != "stop",
            id=action.id,
        )
        for action in ACTIONS
    ]
    numbers = [
        Binding(f"alt+{number}", f"go_to_tab({number})", f"Chat {number}", show=False, priority=True)
        for number in range(1, 10)
    ]
    return made + numbers
