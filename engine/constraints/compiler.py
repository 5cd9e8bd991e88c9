"""One model's constraints: checked where they are asked for, compiled once, copied for each sequence."""

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from engine.api.constraint import Constraint, ConstraintError
from engine.api.errors import RequestError
from engine.constraints.grammar import grammar_of
from engine.constraints.matcher import Matcher
from engine.constraints.places import find_place
from engine.constraints.token_table import make_token_table
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
        self._table: LLTokenizer | None = None
        self._compiled: OrderedDict[Constraint, LLMatcher] = OrderedDict()
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
            return Matcher(compiled.deep_copy(), self._vocab_size)

    def _compile(self, constraint: Constraint) -> "LLMatcher":
        try:
            from llguidance import LLMatcher, LLParserLimits
        except ImportError as error:
            raise RequestError(
                "constraint: holding answers to one needs llguidance; install it with: "
                "pip install 'tui-chat[serve]'"
            ) from error
        if self._table is None:
            self._table = make_token_table(self._tokenizer, self._vocab_size)
        limits = LLParserLimits(verbose_errors=False)
        compiled = LLMatcher(self._table, grammar_of(constraint, self._tokenizer), log_level=0, limits=limits)
        if compiled.is_error():
            raise ConstraintError(*find_place(constraint, compiled.get_error()))
        return compiled
