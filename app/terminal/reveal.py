"""Showing a file in the desktop's own file manager, where there is a desktop."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_SECONDS = 3.0


def reveal_command(path: Path, environ: Mapping[str, str], platform: str) -> list[str] | None:
    """Return the command that shows a file in its folder; None where no display is near."""
    if "SSH_CONNECTION" in environ or "SSH_TTY" in environ:
        return None
    if platform == "darwin":
        return ["open", "-R", str(path)]
    if "DISPLAY" in environ or "WAYLAND_DISPLAY" in environ:
        return ["xdg-open", str(path.parent)]
    return None


def reveal(path: Path, environ: Mapping[str, str]) -> bool:
    """Show a file in its folder; tell whether that was possible. May take seconds: call off the UI."""
    command = reveal_command(path, environ, sys.platform)
    if command is None or shutil.which(command[0], path=environ.get("PATH")) is None:
        return False
    quiet = subprocess.DEVNULL
    try:
        opened = subprocess.Popen(
            command, stdin=quiet, stdout=quiet, stderr=quiet, env=dict(environ), start_new_session=True
        )
        return opened.wait(_SECONDS) == 0
    except subprocess.TimeoutExpired:
        # Some openers stay as long as their window does.
        return True
    except OSError:
        return False
