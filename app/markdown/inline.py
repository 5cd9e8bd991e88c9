"""Inline markdown to runs: emphasis, code, links, entities, breaks. No other markup."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from itertools import islice

from markdown_it import MarkdownIt
from markdown_it.token import Token

from app.markdown.links import safe_link
from app.markdown.math import plain, shielded, shown_in
from app.markdown.text import TEXT, Look, Run
from app.terminal.controls import clean

_URL = re.compile(r"(?:https?|file)://[^\s<>\"'`]*[^\s<>\"'`.,;:!?)\]}]")
_SPECIAL = re.compile(r"[*_`~\[\]<>&\\!$]|(?:https?|file)://")
# The parser's work grows with the square of these: beyond so many they are no markup that anybody wrote.
_MOST_MARKS = 300


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable("strikethrough")


def plain_runs(text: str, look: Look = TEXT) -> list[Run]:
    """Return text without any markup, line breaks kept."""
    return [Run("\n".join(clean(line) for line in text.split("\n")), look)]


def close_open_marks(text: str) -> str:
    """Close emphasis and code that a stream has opened but not yet closed, for drawing only."""
    for mark in ("`", "**"):
        if text.count(mark) % 2:
            if text.endswith(mark):
                return text[: -len(mark)]
            return text.rstrip(" *") + mark
    return text


def parse_inline(text: str, look: Look = TEXT) -> list[Run]:
    """Parse the inline markdown of one block; line breaks stay as newlines inside the runs."""
    marks = sum(1 for _ in islice(_SPECIAL.finditer(text), _MOST_MARKS + 1))
    if not 0 < marks <= _MOST_MARKS:
        return plain_runs("\n".join(line.strip() for line in text.split("\n")), look)
    runs: list[Run] = []
    looks = [look]
    for token in _parser().parseInline(shielded(text))[0].children or []:
        _token(token, looks, runs)
    return [Run("\n".join(clean(line) for line in run.text.split("\n")), run.look) for run in runs]


def _token(token: Token, looks: list[Look], runs: list[Run]) -> None:
    look = looks[-1]
    match token.type:
        case "text" | "text_special":
            _text(token.content, look, runs)
        case "softbreak" | "hardbreak":
            runs.append(Run("\n", look))
        case "code_inline":
            runs.append(Run(token.content, replace(look, kind="code")))
        case "strong_open":
            looks.append(replace(look, bold=True))
        case "em_open":
            looks.append(replace(look, italic=True))
        case "s_open":
            looks.append(replace(look, strike=True))
        case "link_open":
            looks.append(replace(look, kind="link", href=safe_link(str(token.attrs.get("href", "")))))
        case "image":
            _image(token, look, runs)
        case "link_close":
            _link_url(looks.pop(), looks[-1], runs)
        case kind if kind.endswith("_close"):
            looks.pop()
        case _:
            _text(token.content, look, runs)


def _image(token: Token, look: Look, runs: list[Run]) -> None:
    """Show an image as a link with its name; one that stands in the text itself has no address."""
    source = str(token.attrs.get("src", ""))
    href = safe_link(source)
    runs.append(Run(f"[image: {plain(token.content) or 'untitled'}]", replace(look, kind="link", href=href)))
    shown = "embedded" if source.startswith("data:") else source
    runs.append(Run(f" ({shown})", replace(look, kind="muted", href=href)))


def _link_url(link: Look, outer: Look, runs: list[Run]) -> None:
    """Show the address of a link whose label does not."""
    label = ""
    for run in reversed(runs):
        if run.look.kind not in ("link", "code"):
            break
        label = run.text + label
    bare = link.href.removeprefix("mailto:")
    if link.href and label not in (link.href, bare):
        runs.append(Run(f" ({link.href})", replace(outer, kind="muted", href=link.href)))


def _text(text: str, look: Look, runs: list[Run]) -> None:
    for part, is_formula in shown_in(text):
        if is_formula:
            runs.append(Run(part, replace(look, kind="math")))
        else:
            _words(part, look, runs)


def _words(text: str, look: Look, runs: list[Run]) -> None:
    position = 0
    if look.kind != "link" and "://" in text:
        for match in _URL.finditer(text):
            if match.start() > position:
                runs.append(Run(text[position : match.start()], look))
            runs.append(Run(match[0], replace(look, kind="link", href=safe_link(match[0]))))
            position = match.end()
    if position < len(text):
        runs.append(Run(text[position:], look))
