"""Copying text out of the terminal, saying truly what happened.

On this computer the desktop's own tool is used; inside tmux, tmux's buffer, which it hands on to the
terminal; else the terminal is asked with OSC 52, which it may ignore without telling anybody.
"""

import base64
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from app.terminal.osc import through_tmux

_LARGEST_OSC52 = 100_000
_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class CopyResult:
    """Whether the text is in a clipboard as far as can be known, and a sentence that says so."""

    ok: bool
    message: str


def native_commands(environ: Mapping[str, str], platform: str) -> list[list[str]]:
    """Return the clipboard commands that fit this session, best first."""
    if "SSH_CONNECTION" in environ or "SSH_TTY" in environ:
        return []
    if platform == "darwin":
        return [["pbcopy"]]
    commands: list[list[str]] = []
    if "WAYLAND_DISPLAY" in environ:
        commands.append(["wl-copy"])
    if "DISPLAY" in environ:
        commands += [["xclip", "-selection", "clipboard"], ["xsel", "--clipboard", "--input"]]
    if "WSL_DISTRO_NAME" in environ:
        commands.append(["clip.exe"])
    return commands


def osc52(text: str, in_tmux: bool) -> str:
    """Return the escape sequence that asks the terminal to take the text, through tmux if needed."""
    return through_tmux(f"\x1b]52;c;{base64.b64encode(text.encode()).decode()}\x07", in_tmux)


def copy_text(
    text: str,
    write: Callable[[str], None],
    environ: Mapping[str, str] | None = None,
    platform: str = sys.platform,
) -> CopyResult:
    """Copy `text`; `write` sends an escape sequence to the terminal. May take seconds: call off the UI."""
    environ = os.environ if environ is None else environ
    size = f"{len(text):,} characters"
    for command in native_commands(environ, platform):
        if _run(command, text):
            return CopyResult(True, f"Copied {size} with {command[0]}.")
    in_tmux = "TMUX" in environ
    if in_tmux and _run(["tmux", "load-buffer", "-w", "-"], text):
        return CopyResult(True, f"Copied {size} to the tmux buffer and, where tmux may, the terminal.")
    if len(text.encode()) > _LARGEST_OSC52:
        return CopyResult(
            False, f"Not copied: {size} are too many for the terminal, and no clipboard tool works."
        )
    write(osc52(text, in_tmux))
    return CopyResult(True, f"Sent {size} to the terminal (OSC 52), which may ignore it.")


def _run(command: list[str], text: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    try:
        # xclip stays alive to serve the selection and would hold captured pipes open for ever.
        done = subprocess.run(
            command,
            input=text.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
