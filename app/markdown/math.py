"""Formulas in TeX as a terminal can show them: signs, raised and lowered letters; the rest as it is."""

from __future__ import annotations

import re

from app.markdown.math_signs import LETTERS, LOWERED, RAISED, SIGNS

_LONGEST, _DEEPEST = 4000, 24
_PIECE = re.compile(r"\\[A-Za-z]+|\\.|[{}^_&]|\s+|[^\\{}^_&\s]", re.DOTALL)
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{[A-Za-z]+\*?\}(?:\{[lcr|]*\})?")
_PLAIN = frozenset(
    ("text", "textbf", "textit", "mathrm", "mathbf", "mathit", "mathsf", "operatorname", "boldsymbol")
)
_DROPPED = frozenset(("left", "right", "big", "Big", "bigg", "Bigg", "displaystyle", "limits", "nolimits"))
_FRACTIONS = frozenset(("frac", "dfrac", "tfrac", "cfrac"))
_ACCENTS = {
    "hat": "\u0302",
    "bar": "\u0304",
    "overline": "\u0304",
    "vec": "\u20d7",
    "tilde": "\u0303",
    "dot": "\u0307",
}
_ESCAPED = {"\\": "\n", ",": " ", ";": " ", ":": " ", "!": "", " ": " ", "|": "‖"}
_SIMPLE = re.compile(r"[\w.′]*\Z")

_CODE = r"(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)"
_FORMULA = re.compile(
    rf"{_CODE}|\]\([^)\s]*\)|\w+://\S+"
    r"|\\\((?P<a>.+?)\\\)|\\\[(?P<b>.+?)\\\]|\$\$(?P<c>.+?)\$\$"
    r"|(?<![\\$\w])\$(?P<d>[^\s$](?:[^$\n]*?[^\s$\\])?)\$(?!\d)",
    re.DOTALL,
)
_MARKED = re.compile(r"\s*(?:\\\(|\\\[|\$\$?)(.*?)(?:(?:\\\)|\\\]|\$\$?)([ .,;]*))?\s*\Z", re.DOTALL)
# Formulas go through the markdown parser in letters that mean nothing to it.
_SHIFT, _OPEN, _CLOSE = 0xE000, "\ue0ff", "\ue0fe"
_SHIELDED = re.compile(f"{_OPEN}([^{_CLOSE}]*){_CLOSE}")
_TAKEN = re.compile("[\ue000-\ue0ff]")
_HIDE = {code: _SHIFT + code for code in range(0x80)}
_SHOW = {shifted: code for code, shifted in _HIDE.items()}


def shielded(text: str) -> str:
    """Return a text whose formulas no markdown is found in; `shown_in` and `plain` bring them back."""
    if ("$" not in text and "\\" not in text) or _TAKEN.search(text):
        return text

    def hide(match: re.Match[str]) -> str:
        if match.lastgroup in (None, "ticks"):
            return match[0]
        return _OPEN + match[0].translate(_HIDE) + _CLOSE

    return _FORMULA.sub(hide, text)


def plain(text: str) -> str:
    """Return a text with its formulas as they were written."""
    return _SHIELDED.sub(lambda match: match[1].translate(_SHOW), text) if _OPEN in text else text


def shown_in(text: str) -> list[tuple[str, bool]]:
    """Return the parts of a shielded text, its formulas readable, and which parts are formulas."""
    if _OPEN not in text:
        return [(text, False)]
    parts = _SHIELDED.split(text)
    pairs = [(part, bool(index % 2)) for index, part in enumerate(parts)]
    return [(readable(part.translate(_SHOW)) if math else part, math) for part, math in pairs if part]


def readable(formula: str) -> str:
    """Return a formula with the signs that its commands stand for; unknown ones stay as they are."""
    found = _MARKED.match(formula)
    text = found[1] if found else formula.strip()
    if len(text) > _LONGEST:
        return text
    shown = _Reader(_ENVIRONMENT.sub("", text)).read()
    lines = "\n".join(line.strip() for line in shown.split("\n")).strip("\n")
    return lines + (found[2] or "" if found else "")


class _Reader:
    """Reads a formula piece by piece."""

    def __init__(self, text: str) -> None:
        self._pieces = _PIECE.findall(text)
        self._at = 0
        self._depth = 0

    def read(self) -> str:
        """Read up to the end, or to the brace that closes what is read."""
        shown: list[str] = []
        while self._at < len(self._pieces):
            piece = self._pieces[self._at]
            if piece == "}" and self._depth:
                break
            shown.append(self._next())
        return "".join(shown)

    def _next(self) -> str:
        piece = self._pieces[self._at]
        self._at += 1
        if piece.startswith("\\"):
            return self._command(piece[1:])
        if piece in "^_":
            return _shifted(self._group(), RAISED if piece == "^" else LOWERED, piece)
        if piece == "{":
            self._at -= 1
            return self._group()
        if piece == "&":
            return " "
        return "\n" if "\n" in piece and piece.isspace() else " " if piece.isspace() else piece

    def _group(self) -> str:
        """Read what stands in braces, or the next piece."""
        while self._at < len(self._pieces) and self._pieces[self._at].isspace():
            self._at += 1
        if self._at >= len(self._pieces):
            return ""
        if self._depth >= _DEEPEST:
            self._at += 1
            return self._pieces[self._at - 1]
        self._depth += 1
        try:
            if self._pieces[self._at] != "{":
                return "" if self._pieces[self._at] == "}" else self._next()
            self._at += 1
            shown = self.read()
            self._at += 1
            return shown
        finally:
            self._depth -= 1

    def _command(self, name: str) -> str:
        if name in _FRACTIONS:
            over, under = self._group(), self._group()
            return f"{_braced(over)}/{_braced(under)}"
        if name == "sqrt":
            degree = self._degree()
            return f"{_shifted(degree, RAISED, '^') if degree else ''}√{_braced(self._group())}"
        if name in LETTERS:
            letters = self._group()
            return "".join(LETTERS[name].get(letter, letter) for letter in letters)
        if name in _ACCENTS:
            inside = self._group()
            return inside + _ACCENTS[name] if len(inside) == 1 else f"{name}({inside})"
        if name in _PLAIN:
            return self._group()
        if name in _DROPPED:
            return ""
        return SIGNS.get(name) or _ESCAPED.get(name, name if not name.isalpha() else f"\\{name}")

    def _degree(self) -> str:
        """Read the degree of a root in its brackets."""
        pieces = self._pieces
        if self._at >= len(pieces) or pieces[self._at] != "[" or "]" not in pieces[self._at :]:
            return ""
        end = pieces.index("]", self._at)
        degree = "".join(pieces[self._at + 1 : end])
        self._at = end + 1
        return degree


def _shifted(text: str, letters: dict[str, str], sign: str) -> str:
    """Raise or lower a text where every letter of it can be."""
    text = text.strip()
    if text and all(letter in letters for letter in text):
        return "".join(letters[letter] for letter in text)
    return f"{sign}{text}" if len(text) == 1 else f"{sign}({text})"


def _braced(text: str) -> str:
    text = text.strip()
    return text if _SIMPLE.match(text) else f"({text})"
