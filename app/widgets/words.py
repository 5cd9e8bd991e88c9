"""Text that others wrote, as widgets may show it."""

from textual.content import Content

from app.terminal.controls import clean_lines


def words(text: str) -> Content:
    """Return a text as a widget may show it: never markup, and nothing that steers a terminal.

    Whatever a file, its name, a chat or a person brings in goes through this on its way into a widget.
    """
    return Content(clean_lines(text))
