"""The keys of the chat screen, made of the actions."""

from textual.binding import Binding

from app.settings.actions import ACTIONS


def bindings() -> list[Binding]:
    """Return the chat screen's bindings; keys that text editing needs stay with the composer."""
    plain = {"stop", "scroll_up", "scroll_down"}
    made = [
        Binding(
            action.keys, action.id, action.title, show=False, priority=action.id not in plain, id=action.id
        )
        for action in ACTIONS
    ]
    numbers = [
        Binding(f"alt+{number}", f"go_to_tab({number})", f"Chat {number}", show=False, priority=True)
        for number in range(1, 10)
    ]
    return made + numbers
