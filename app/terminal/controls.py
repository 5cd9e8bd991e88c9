"""Characters that could steer a terminal, made visible: no text of a model or a file is to do that."""

import re
from typing import TextIO

_BIDI = {
    code: f"‹U+{code:04X}›"
    for code in (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}
_CONTROLS: dict[int, str] = {
    **{code: chr(0x2400 + code) for code in range(0x20)},
    0x7F: "␡",
    **dict.fromkeys(range(0x80, 0xA0), "\N{REPLACEMENT CHARACTER}"),
    0x2028: "␤",
    0x2029: "␤",
    **_BIDI,
}
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_LAYOUT = re.compile("([\n\t])")


def clean(text: str) -> str:
    """Return `text` (one line) with tabs expanded and what could steer a terminal made visible."""
    if text.isascii() and text.isprintable():
        return text
    if "\t" in text:
        text = text.expandtabs(4)
    return _visible(text)


def masked(text: str) -> str:
    """Return `text` (one line, tabs kept) with one visible character for each that could steer a terminal."""
    if text.isprintable():
        return text
    return _UNSAFE.sub(lambda match: match[0] if match[0] == "\t" else _mask(match[0]), text)


def _mask(character: str) -> str:
    shown = _CONTROLS.get(ord(character), "")
    return shown if len(shown) == 1 else "\N{REPLACEMENT CHARACTER}"


def clean_lines(text: str) -> str:
    """Return `text` with its line breaks, every line cleaned."""
    return "\n".join(clean(line) for line in text.split("\n"))


def for_stream(text: str, stream: TextIO) -> str:
    """Return `text` as it may be written to `stream`: a terminal gets nothing that steers it but line
    breaks and tabs.

    Through a pipe and into a file it goes as it is.
    """
    if not stream.isatty():
        return text
    return "".join(part if part in ("\n", "\t") else _visible(part) for part in _LAYOUT.split(text))


def _visible(text: str) -> str:
    if _UNSAFE.search(text) is None:
        return text
    return _UNSAFE.sub(lambda match: _CONTROLS.get(ord(match[0]), "\N{REPLACEMENT CHARACTER}"), text)
