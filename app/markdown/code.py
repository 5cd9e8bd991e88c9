"""Highlighting of code that grows line by line, at a bounded cost per line."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from functools import lru_cache

from pygments.lexer import ExtendedRegexLexer, Lexer, LexerContext, RegexLexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Token, _TokenType
from pygments.util import ClassNotFound

from app.markdown.text import Look, Run
from app.terminal.controls import clean

_SUFFIX = re.compile(r"\*\.\w+")
_log = logging.getLogger(__name__)

# Beyond these the colours are not worth the time: a longer block stays as it streamed, a longer line plain.
WHOLE_LIMIT = 400_000
LINE_LIMIT = 2000
_TOKENS_AT_ONCE = 200
PLAIN = Look("codeblock")


@lru_cache(maxsize=64)
def find_lexer(language: str) -> Lexer | None:
    """Return the lexer of a fence's language, None when there is none."""
    if not language:
        return None
    try:
        return get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except (ClassNotFound, ValueError):
        return None


def file_suffix(language: str) -> str:
    """Return the suffix of files in a language, `.txt` where none is known."""
    lexer = find_lexer(language)
    names = lexer.filenames if lexer is not None else []
    return next((name[1:] for name in names if _SUFFIX.fullmatch(name)), ".txt")


@lru_cache(maxsize=512)
def _look(token: _TokenType) -> Look:
    return Look(f"token:{token!s}") if token is not Token.Text else PLAIN


class Highlighter:
    """The runs of a code block: line by line from saved state, and as a whole when closed.

    Some tokens span lines (a comment opened and not closed yet), which only the whole text tells.
    """

    def __init__(self, language: str) -> None:
        self._language = language
        self._failed = False
        self._stack = ["root"]

    def line(self, text: str, commit: bool = True) -> list[Run]:
        """Return the runs of the next line; with `commit` the state moves on behind it."""
        lexer = None if self._failed or len(text) > LINE_LIMIT else find_lexer(self._language)
        if not isinstance(lexer, RegexLexer):
            return [Run(clean(text), PLAIN)]
        # Expanded first: where a tab ends depends on its column, which a token does not know.
        text = text.expandtabs(4)
        context = LexerContext(text + "\n", 0, stack=list(self._stack), end=len(text) + 1)
        try:
            tokens = ExtendedRegexLexer.get_tokens_unprocessed(lexer, context=context)
            runs = [
                Run(clean(value.rstrip("\n")), _look(token))
                for _, token, value in tokens
                if value.rstrip("\n")
            ]
        except Exception:
            # Lexers with callbacks of their own do not take a context.
            _log.debug("no line by line highlighting for %s", self._language)
            self._failed = True
            return [Run(clean(text), PLAIN)]
        if commit:
            self._stack = list(context.stack) or ["root"]
        return runs

    def whole(self, source: str) -> Iterator[list[list[Run]]]:
        """Highlight the whole block a little at a time: yields batches of lines, in order, empty ones too."""
        lexer = find_lexer(self._language)
        if lexer is None or len(source) > WHOLE_LIMIT:
            return
        batch: list[list[Run]] = []
        line: list[Run] = []
        # Some lexers know a line by its end alone.
        ended = source.expandtabs(4) + "\n"
        for number, (_, token, value) in enumerate(lexer.get_tokens_unprocessed(ended), 1):
            head, *rest = value.split("\n")
            if head:
                line.append(Run(clean(head), _look(token)))
            for part in rest:
                batch.append(line)
                line = [Run(clean(part), _look(token))] if part else []
            if len(batch) >= 16 or number % _TOKENS_AT_ONCE == 0:
                yield batch
                batch = []
        yield [*batch, line] if line else batch


def spend(work: Iterator[object], seconds: float) -> bool:
    """Advance an iterator for about `seconds`; true when it is exhausted."""
    until = time.perf_counter() + seconds
    return all(time.perf_counter() < until for _ in work)
