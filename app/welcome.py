"""What an empty chat says."""

from pathlib import Path

from app.builtin_model import is_builtin


def welcome_text(models_folder: Path, model: Path) -> str:
    """Return a few plain lines; with the built-in model they say that it is only a demo."""
    folder = str(models_folder).replace(str(Path.home()), "~", 1)
    if is_builtin(model):
        first = (
            "This is Pocket 44M, a tiny demo model that ships with the program.\n"
            "It is quick, and usually wrong: it is here to show how chats run side by side.\n\n"
            "For real answers open a real model with Ctrl+O: any .gguf file of a Llama, Mistral,\n"
            f"Qwen2 or Qwen3 model. Files in {folder} are listed there."
        )
    else:
        first = f"A new chat with {model.stem}.\n\nCtrl+O opens another model; this chat goes on with it."
    return f"{first}\n\nEnter sends · Ctrl+J begins a new line · Ctrl+T opens another chat · F1 lists all keys"
