"""What an empty chat says."""

from pathlib import Path

from textual.content import Content

from app.builtin_model import is_builtin

_KEYS = (
    ("Enter", "sends the message"),
    ("Ctrl+J", "begins a new line in it"),
    ("Ctrl+T", "opens another chat; all of them answer at the same time"),
    ("Ctrl+O", "opens another model in this chat"),
    ("F1", "lists all keys"),
)


def welcome_text(models_folder: Path, model: Path) -> Content:
    """Return a few plain lines; with the built-in model they say that it is only a demo."""
    parts: list[str | tuple[str, str]] = []
    if is_builtin(model):
        folder = str(models_folder).replace(str(Path.home()), "~", 1)
        parts += [
            ("This is only a tiny demo model.\n\n", "bold $foreground"),
            "Pocket 44M ships with the program to show how chats run side by side. It is quick, and ",
            "usually wrong.\n\nFor real answers press ",
            ("Ctrl+O", "$accent"),
            " and open a real model: a .gguf file of a Llama, Mistral, Qwen2 or Qwen3 model. ",
            "Put files here and they are listed:\n",
            (folder, "$primary"),
        ]
    else:
        parts += [
            (model.stem, "bold $foreground"),
            "\n\nA new chat. Whatever you write stays on this computer.",
        ]
    parts.append("\n\n")
    for key, what in _KEYS:
        parts += [(f"\n{key:<9}", "$accent"), what]
    return Content.assemble(*parts)
