"""Writing a text in the reader's own editor."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

_USUAL = ("nano", "vi")


class EditorError(Exception):
    """The editor did not do its work; says what to do."""


def editor_command(environ: Mapping[str, str]) -> list[str]:
    """Return the command of `VISUAL`, `EDITOR`, or of an editor that is there; raises `EditorError`."""
    for variable in ("VISUAL", "EDITOR"):
        if not (written := environ.get(variable, "").strip()):
            continue
        try:
            command = shlex.split(written)
        except ValueError as error:
            raise EditorError(f"{variable} is no command ({error}): {written}") from error
        if shutil.which(command[0]) is None:
            raise EditorError(f"{variable} names {command[0]}, which is not there.")
        return command
    for name in _USUAL:
        if shutil.which(name) is not None:
            return [name]
    raise EditorError("There is no editor; name one in the variable EDITOR.")


def edited(text: str, command: list[str], name: str = "message.md", what: str = "message") -> str:
    """Return a text as the editor leaves it; lasts as long as the editor runs.

    name: of the file, which is for its owner only; what: the text is, where that has to be said. Raises
    `EditorError` where nothing comes back; the text is unchanged then.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="tui-chat-") as folder:
            path = Path(folder, name)
            path.touch(mode=0o600)
            path.write_text(text, encoding="utf-8", newline="")
            # Descriptors 1 and 2 are not the terminal's while the app runs.
            done = subprocess.run(
                [*command, os.fspath(path)], stdout=sys.__stdout__, stderr=sys.__stderr__, check=False
            )
            if done.returncode:
                raise EditorError(f"{command[0]} ended with code {done.returncode}; the {what} is as before.")
            written = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise EditorError(f"What was written is not UTF-8; the {what} is as before.") from error
    except OSError as error:
        raise EditorError(f"{command[0]} could not be used ({error.strerror}).") from error
    # Editors end a file with a line break that nobody wrote.
    return written.removesuffix("\n") if not text.endswith("\n") else written
