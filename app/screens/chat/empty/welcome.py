"""What an empty chat says: what answers here, a few things to ask, and the keys that matter."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from textual.content import Content
from textual.style import Style

from app.models.builtin import is_builtin, model_title
from app.models.endpoint_keys import endpoint_model
from app.screens.fetching import Fetchable
from app.settings.actions import label_of
from app.terminal.controls import clean

PROMPTS = (
    "Give me three tips for sleeping better.",
    "Tell me a short story about a fox and a lighthouse.",
    "Write a Python function that reverses a string.",
)
"""To begin with."""
_ACTIONS = (
    ("new_tab", "opens another chat; all of them answer at the same time"),
    ("choose_model", "opens another model in this chat"),
    ("chats", "lists all chats, also those whose tabs are closed"),
    ("help", "lists all keys"),
)
_Part = str | tuple[str, str | Style]


def welcome_text(
    models_folder: Path,
    model: Path,
    overrides: Mapping[str, str],
    offered: Sequence[Fetchable] = (),
    *,
    writing: tuple[str, str] = ("Enter", "Ctrl+J"),
) -> Content:
    """Return a few plain lines; with the built-in model they say how to get a larger one.

    overrides: the reader's own keys; offered: models that fit this computer; writing: what
    sends a message and what begins a line in it.
    """
    send, newline = writing
    builtin, choose = is_builtin(model), label_of("choose_model", overrides)
    parts: list[_Part] = [
        (clean(model_title(model)), "bold $foreground"),
        f"\n{_inviting(model)} Ask it something:\n",
    ]
    for number, prompt in enumerate(PROMPTS):
        click = Style.from_meta({"@click": f"screen.begin_with({number})"})
        parts += [("\n  › ", "$accent"), (prompt, click)]
    parts.append(("\n\n  A click writes it, and so does ↑.\n", "$foreground 55%"))
    if builtin:
        parts += _larger(models_folder, choose, offered)
    keys = [(send, "sends the message"), (newline, "begins a new line in it")]
    keys += [(label_of(name, overrides), what) for name, what in _ACTIONS]
    indent = 2 + max(len(key) for key, _ in keys)
    for key, what in keys:
        parts += [(f"\n{key:<{indent}}", "$accent"), what]
    return Content.assemble(*parts)


def _inviting(model: Path) -> str:
    if is_builtin(model):
        return "It is small and answers at once."
    elsewhere = endpoint_model(model)
    if elsewhere is not None:
        return f"What you write goes to the endpoint {clean(elsewhere[0])}."
    return "What you write stays on this computer."


def _larger(folder: Path, key: str, offered: Sequence[Fetchable]) -> list[_Part]:
    """How to get a model that knows more."""
    parts: list[_Part] = ["\nFor harder questions "]
    if offered:
        parts.append("this computer has room for ")
        for index, model in enumerate(offered):
            parts += [" or " if index else "", (clean(model.title), "bold"), f" ({clean(model.terms)})"]
        parts += [": ", (key, "$accent"), " and Enter fetch it."]
    else:
        parts += [(key, "$accent"), " fetches or opens a larger model."]
    place = clean(str(folder).replace(str(Path.home()), "~", 1))
    return [*parts, " Your own .gguf files go into ", (place, "$primary"), "\n"]
