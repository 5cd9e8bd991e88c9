"""Moving in a list while a line above it is being written in."""

from textual import events
from textual.widgets import OptionList


def move_in(options: OptionList, event: events.Key) -> None:
    """Let the arrow and page keys move in a list that has not the focus itself."""
    moves = {
        "up": options.action_cursor_up,
        "down": options.action_cursor_down,
        "pageup": options.action_page_up,
        "pagedown": options.action_page_down,
    }
    if event.key in moves and not options.has_focus:
        event.stop()
        event.prevent_default()
        moves[event.key]()
