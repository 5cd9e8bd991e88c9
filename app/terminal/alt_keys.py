"""Makes Alt with a digit, Enter, Backspace, B or F arrive as that.

Textual reads ESC 1 as "¡" (and so on), which macOS's Option key would type; ordinary terminals send
ESC 1 for Alt+1, and "¡" typed on a keyboard arrives as itself, never as ESC 1. ESC Return it reads as
Enter alone, which would send a message that the reader wants to go on with; ESC Backspace as Ctrl+W, which
deletes more in a shell, and ESC B and F as Ctrl+Left and Ctrl+Right. Only Textual's own table can be
corrected: it has no way to be given another, and by the time a key arrives the two are one.
"""

from enum import Enum
from typing import Any, cast

from textual._ansi_sequences import ANSI_SEQUENCES_KEYS


class _AltKeys(Enum):
    """Keys that Textual has no name of its own for; its table holds members of an enumeration."""

    ENTER = "alt+enter"
    BACKSPACE = "alt+backspace"
    B = "alt+b"
    F = "alt+f"


def read_alt_keys() -> None:
    """Correct Textual's table: ESC and a digit become `alt+1`, ESC Return `alt+enter`, and so on."""
    table = cast(dict[str, Any], ANSI_SEQUENCES_KEYS)
    for digit in "0123456789":
        table.pop(f"\x1b{digit}", None)
    table["\x1b\r"] = (_AltKeys.ENTER,)
    table["\x1b\x7f"] = (_AltKeys.BACKSPACE,)
    table["\x1bb"], table["\x1bf"] = (_AltKeys.B,), (_AltKeys.F,)
