"""Makes Alt+digit arrive as that.

Textual reads ESC 1 as "¡" (and so on), which macOS's Option key would type; ordinary terminals send
ESC 1 for Alt+1, and "¡" typed on a keyboard arrives as itself, never as ESC 1.
"""

from textual._ansi_sequences import ANSI_SEQUENCES_KEYS


def read_alt_digits() -> None:
    """Take Textual's reading of ESC and a digit away; its parser then reports `alt+1`."""
    for digit in "0123456789":
        ANSI_SEQUENCES_KEYS.pop(f"\x1b{digit}", None)
