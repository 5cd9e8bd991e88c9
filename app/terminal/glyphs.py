"""Signs that every terminal has: what stands for lines, blocks and marks where only ASCII can be shown."""

from collections.abc import Mapping

_LOCALE = ("LC_ALL", "LC_CTYPE", "LANG")
_SAME = {
    "-": "─━┄┅┈┉╌╍╴╶╸╺–—‐‑−▔",
    "=": "═‖",
    "|": "│┃┆┇┊┋╎╏╵╷╹╻║▉▊▋▌▍▎▏▐▕",
    "_": "▁☐",
    ".": "▂·░",
    ":": "▃▒",
    "+": "▄▅",
    "*": "▆•★☆⠿",
    "%": "▇▓",
    "#": "█▀■▪▮",
    "@": "●",
    "o": "◌◦○",
    "c": "◔",
    "C": "◑",
    "O": "◕",
    "x": "×✗✕☑",
    "v": "↓▾▼",
    "^": "↑▴▲",
    "<": "←‹◂◀",
    ">": "→›❯▸▶",
    "~": "…",
    '"': "“”„«»",
    "'": "‘’‚",
    "\\": "⠸⠧╲",
    "/": "⠙⠴╱",
}
_SPINNER = {"|": "⠋⠼⠇", "/": "⠏", "-": "⠹⠦"}


def _table() -> dict[int, str]:
    """Every box is a plus and every Braille dot a star, but for those that are named."""
    table = dict.fromkeys(range(0x2500, 0x2580), "+") | dict.fromkeys(range(0x2580, 0x25A0), "#")
    table |= dict.fromkeys(range(0x25A0, 0x2600), "o") | dict.fromkeys(range(0x2800, 0x2900), "*")
    table |= dict.fromkeys(range(0x2400, 0x2427), "?") | {0xA0: " "}
    for named in (_SAME, _SPINNER):
        table |= {ord(sign): plain for plain, signs in named.items() for sign in signs}
    return table


ASCII = _table()
"""From a code point to the ASCII sign that takes its cell, as `str.translate` has it."""


def is_utf8(environ: Mapping[str, str]) -> bool:
    """Tell whether the locale is UTF-8; one that says nothing is taken for it."""
    said = next((value for name in _LOCALE if (value := environ.get(name, ""))), "utf-8")
    return "utf-8" in said.lower() or "utf8" in said.lower()
