"""How the list of all chats draws one."""

import time

from rich.cells import cell_len
from textual.content import Content

from app.history.statements import ConversationSummary
from app.models.builtin import model_title
from app.settings.words import age_text
from app.widgets.lines import fit

_MESSAGES, _AGE = 8, 8
_MODEL_NARROW, _MODEL_WIDE, _WIDE = 14, 24, 84
"""Cells of the model's name, in lists narrower than `_WIDE` and in others."""
_NARROW = 56
"""A list narrower than that has room for titles only without models."""


def heading(width: int) -> str:
    """Return the line above the list."""
    title, rest = _columns("Title", "Model", "Messages", "Age", width)
    return f"  {title}{rest}"


def chat_row(chat: ConversationSummary, query: str, width: int, *, opened: bool) -> Content:
    """Return a chat's line, and a second one where a search found it in a message."""
    model = model_title(chat.model_path) if chat.model_path else ""
    age = age_text(time.time() - chat.updated)
    pin = "★ " if chat.marks.pinned else ""
    named = f"{pin}{chat.title}"
    tags = "".join(f" #{tag}" for tag in chat.marks.tags)
    title, rest = _columns(named + tags, model, f"{chat.messages:,}", age, width)
    shown = Content.assemble((title[: len(named)], "bold"), (title[len(named) :], "$accent"))
    row = Content.assemble(("● " if opened else "  ", "$accent"), shown, (rest, "$foreground 70%"))
    if not chat.snippet:
        return row
    return Content("\n").join([row, _snippet(fit(chat.snippet, width - 2).rstrip(), query)])


def _snippet(text: str, query: str) -> Content:
    """Return a found message's text with the words that were looked for in another colour."""
    line = Content.assemble("  ", (text, "$foreground 70%"))
    lowered = text.lower()
    if len(lowered) != len(text):
        return line
    for word in query.lower().split():
        at = lowered.find(word)
        while at >= 0:
            line = line.stylize("$accent", at + 2, at + 2 + len(word))
            at = lowered.find(word, at + len(word))
    return line


def _columns(title: str, model: str, messages: str, age: str, width: int) -> tuple[str, str]:
    """Return a row's title and its other columns; two of the `width` cells are left for the mark."""
    model_width = _MODEL_WIDE if width >= _WIDE else _MODEL_NARROW
    named = (fit(model, model_width),) if width >= _NARROW else ()
    cells = (*named, fit(messages, _MESSAGES, right=True), fit(age, _AGE, right=True))
    rest = "".join("  " + cell for cell in cells)
    return fit(title, width - 2 - cell_len(rest)), rest
