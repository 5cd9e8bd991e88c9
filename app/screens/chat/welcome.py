"""What an empty chat says."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from textual.content import Content

from app.models.builtin import is_builtin
from app.screens.fetching import Fetchable
from app.settings.actions import label_of
from app.terminal.controls import clean

_ACTIONS = (
    ("new_tab", "opens another chat; all of them answer at the same time"),
    ("choose_model", "opens another model in this chat"),
    ("chats", "lists all chats, also those whose tabs are closed"),
    ("help", "lists all keys"),
)


def welcome_text(
    models_folder: Path,
    model: Path,
    overrides: Mapping[str, str],
    offered: Sequence[Fetchable] = (),
    *,
    writing: tuple[str, str] = ("Enter", "Ctrl+J"),
) -> Content:
    """Return a few plain lines; with the built-in model they say that it is only a demo.

    overrides: the reader's own keys; offered: models that fit this computer; writing: what
    sends a message and what begins a line in it.
    """
    send, newline = writing
    keys = [(send, "sends the message"), (newline, "begins a new line in it")]
    keys += [(label_of(name, overrides), what) for name, what in _ACTIONS]
    indent = 2 + max(len(key) for key, _ in keys)
    parts: list[str | tuple[str, str]] = []
    if is_builtin(model):
        folder = str(models_folder).replace(str(Path.home()), "~", 1)
        parts += [
            ("This is only a tiny demo model.\n\n", "bold $foreground"),
            "Pocket 46M ships with the program to show how chats run side by side. It is quick, and ",
            "often wrong.\n\nFor real answers press ",
            (label_of("choose_model", overrides), "$accent"),
            " and fetch or open a real one. ",
            "Put .gguf files here and they are listed:\n",
            (clean(folder), "$primary"),
            *_offer(offered, label_of("choose_model", overrides)),
        ]
    else:
        parts += [
            (clean(model.stem), "bold $foreground"),
            "\n\nA new chat. Whatever you write stays on this computer.",
        ]
    parts.append("\n\n")
    for key, what in keys:
        parts += [(f"\n{key:<{indent}}", "$accent"), what]
    return Content.assemble(*parts)


def _offer(offered: Sequence[Fetchable], key: str) -> list[str | tuple[str, str]]:
    if not offered:
        return []
    parts: list[str | tuple[str, str]] = ["\n\nThis computer has room for "]
    for index, model in enumerate(offered):
        parts += [" or " if index else "", (clean(model.title), "bold"), f" ({clean(model.terms)})"]
    return [*parts, ": ", (key, "$accent"), " and Enter fetch it."]
