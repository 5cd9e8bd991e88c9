"""Opening an address with the desktop's own program, where there is a desktop."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from urllib.parse import urlsplit

_SCHEMES = frozenset({"http", "https", "mailto", "file"})
_SECONDS = 3.0


def open_command(environ: Mapping[str, str], platform: str) -> str | None:
    """Return the command that opens addresses; None where no display is near."""
    if "SSH_CONNECTION" in environ or "SSH_TTY" in environ:
        return None
    if platform == "darwin":
        return "open"
    if "WSL_DISTRO_NAME" in environ:
        return "wslview"
    if "DISPLAY" in environ or "WAYLAND_DISPLAY" in environ:
        return "xdg-open"
    return None


def open_address(address: str, environ: Mapping[str, str], platform: str = sys.platform) -> bool:
    """Open an address of the web, of mail or of a file that was asked for; tell whether that was possible.

    May take seconds: call off the UI.
    """
    command = open_command(environ, platform)
    tool = shutil.which(command, path=environ.get("PATH")) if command is not None else None
    if tool is None or urlsplit(address).scheme not in _SCHEMES:
        return False
    try:
        opened = subprocess.Popen(
            [tool, address],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(environ),
            start_new_session=True,
        )
        return opened.wait(_SECONDS) == 0
    except subprocess.TimeoutExpired:
        # Some openers stay as long as what they opened.
        return True
    except OSError:
        return False
