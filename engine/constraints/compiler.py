"""One model's constraints: checked where they are asked for, compiled once, copied for each sequence."""

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from engine.api.constraint import Constraint, ConstraintError
from engine.api.errors import RequestError
from engine.constraints.grammar import grammar_of
from engine.constraints.matcher import Matcher
from engine.constraints.places import find_place
from engine.constraints.short_strings import PlainTokens, ShortStrings, probe_of
from engine.constraints.token_table import Vocabulary
from engine.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_KEPT = 32
"""Compiled constraints."""


class Constraints:
    """Makes matchers, for any thread but the engine's: compiling takes a while."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """vocab_size: of the logits, which may be more than the tokenizer's."""
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._vocabulary: Vocabulary | None = None
        self._table: LLTokenizer | None = None
        self._plain: PlainTokens | None = None
        self._compiled: OrderedDict[Constraint, tuple[LLMatcher, ShortStrings | None]] = OrderedDict()
        self._lock = threading.Lock()

    def matcher(self, constraint: Constraint) -> Matcher:
        """For one sequence; raises `RequestError`, `ConstraintError` for a constraint that is none."""
        with self._lock:
            compiled = self._compiled.get(constraint)
            if compiled is None:
                compiled = self._compiled[constraint] = self._compile(constraint)
                if len(self._compiled) > _KEPT:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(constraint)
            grammar, strings = compiled
            return Matcher(grammar.deep_copy(), self._vocab_size, strings and strings.copy())

    def _compile(self, constraint: Constraint) -> "tuple[LLMatcher, ShortStrings | None]":
        _check_library()
        if self._vocabulary is None or self._table is None:
            self._vocabulary = Vocabulary(self._tokenizer, self._vocab_size)
            self._table = self._vocabulary.table()
        text = grammar_of(constraint, self._tokenizer)
        compiled = _matcher(self._table, text)
        if compiled.is_error():
            raise ConstraintError(*find_place(constraint, compiled.get_error()))
        probe = probe_of(constraint)
        return compiled, None if probe is None else self._short_strings(self._vocabulary, text, probe)

    def _short_strings(self, vocabulary: Vocabulary, text: str, probe: str) -> ShortStrings | None:
        if self._plain is None:
            self._plain = PlainTokens(vocabulary)
        if self._plain.others is None:
            return None
        return ShortStrings(self._plain, _matcher(self._plain.others, text), self._plain.probe(probe))


def _matcher(table: "LLTokenizer", text: str) -> "LLMatcher":
    from llguidance import LLMatcher, LLParserLimits

    return LLMatcher(table, text, log_level=0, limits=LLParserLimits(verbose_errors=False))


def _check_library() -> None:
    try:
        import llguidance  # noqa: F401
    except ImportError as error:
        raise RequestError(
            "constraint: holding answers to one needs llguidance; install it with: "
            "pip install 'tui-chat[serve]'"
        ) from error
