"""Masks inside JSON strings that have a longest length, without a look at every token that is too long.

The library follows each token of a vocabulary up to the character that is one too many: milliseconds where
a few characters are left. But inside such a string a token of plain characters may come where it has no
more of them than are left, whatever they are. So the library is asked about the others alone: few have a
quote, a backslash or a part of a character.
"""

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.api.constraint import Constraint, ConstraintKind
from engine.constraints.token_table import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_PLAIN = re.compile(r'[^"\\\x00-\x1f\x7f]+')
_LONGEST = 32
"""Characters left up to which this is quicker: with more of them the library has shortcuts of its own."""
_WORD = 32
_PROBES = "~^`@#%&!"
"""Characters that JSON has nowhere but in strings."""
_LIMIT = "maxLength"
_PATTERNS = frozenset(
    ("pattern", "patternProperties", "propertyNames", "format", "contentEncoding", "contentMediaType")
)
"""What holds strings to more than their length, or may."""
_CHOICES = frozenset(("anyOf", "oneOf", "allOf", "not", "if", "$ref"))
_LITERALS = frozenset(("enum", "const"))
_SCHEMAS = frozenset((ConstraintKind.JSON_SCHEMA, ConstraintKind.CALLS, ConstraintKind.TOOLS))


def probe_of(constraint: Constraint) -> str | None:
    """A character that may come inside its strings and nowhere else; None where length does not say it all.

    So it is where strings have patterns, or may be one of some literals and another string at once.
    """
    if constraint.kind not in _SCHEMAS:
        return None
    try:
        schemas = [json.loads(text) for text in (constraint.text, constraint.calls) if text]
    except (ValueError, RecursionError):
        return None
    keys = set(_keys(schemas))
    if _LIMIT not in keys or keys & _PATTERNS or (keys & _CHOICES and keys & _LITERALS):
        return None
    row = constraint.tool_format
    written = json.dumps(schemas, ensure_ascii=False) + (row.opens + row.closes if row is not None else "")
    return next((probe for probe in _PROBES if probe not in written), None)


def _keys(value: Any) -> Iterator[str]:
    """All keys of JSON, however deep; those of properties too."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield from value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


class PlainTokens:
    """A vocabulary's tokens by how many plain characters they have, and a table of the others."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        tokens, guarded = vocabulary.tokens, frozenset(vocabulary.special_token_ids)
        lengths = np.zeros(-(-len(tokens) // _WORD) * _WORD, dtype=np.int32)
        for token_id, token in enumerate(tokens):
            if token_id not in guarded:
                lengths[token_id] = _plain_characters(token)
        self._lengths = lengths
        self._up_to: dict[int, np.ndarray] = {}
        self._tokens, self._guarded = tokens, guarded
        self._bytes = {tokens[i][0]: i for i in range(len(tokens)) if len(tokens[i]) == 1}
        # What is plain is left out, but for single bytes: by these the others' grammar takes all text.
        others = [
            b"" if length and len(token) > 1 else token
            for token, length in zip(tokens, lengths.tolist(), strict=False)
        ]
        self.others: LLTokenizer | None = vocabulary.table(others) if len(self._bytes) == 256 else None
        """None for a vocabulary that lacks some byte."""

    def probe(self, character: str) -> list[int]:
        """More tokens of one ASCII character than `up_to` knows of."""
        return [self._bytes[ord(character)]] * (_LONGEST + 1)

    def up_to(self, characters: int) -> np.ndarray:
        """int32 [words], a bit for each token of so many plain characters or fewer."""
        words = self._up_to.get(characters)
        if words is None:
            short = (self._lengths > 0) & (self._lengths <= characters)
            words = self._up_to[characters] = np.packbits(short, bitorder="little").view(np.int32)
        return words

    def spelled(self, token_ids: list[int]) -> list[int]:
        """The same text in tokens of the table of others."""
        return [
            each
            for token_id in token_ids
            for each in (
                [token_id]
                if token_id in self._guarded or not self._lengths[token_id]
                else [self._bytes[byte] for byte in self._tokens[token_id]]
            )
        ]


def _plain_characters(token: bytes) -> int:
    """How many characters a token is; 0 where not all are whole and plain."""
    try:
        text = token.decode()
    except UnicodeDecodeError:
        return 0
    return len(text) if _PLAIN.fullmatch(text) else 0


class ShortStrings:
    """One sequence's grammar on the table of others; it takes tokens only when it is asked."""

    def __init__(self, plain: PlainTokens, others: "LLMatcher", probe: list[int]) -> None:
        self._plain, self._others, self._probe = plain, others, probe
        self._behind: list[int] = []
        """Tokens that the other grammar has and this one has not."""

    def copy(self) -> "ShortStrings":
        """For another sequence, at its beginning."""
        return ShortStrings(self._plain, self._others.deep_copy(), self._probe)

    def took(self, token_ids: list[int], *, anew: bool) -> None:
        """Take note of tokens that came; anew: after nothing."""
        if anew:
            self._others.reset()
            self._behind.clear()
        self._behind += token_ids

    def fill(self, grammar: "LLMatcher", words: np.ndarray) -> bool:
        """Write the mask behind all that came, where a string has few characters left; tells whether.

        grammar: that of all tokens, which has taken the same.
        """
        left = grammar.validate_tokens(self._probe)
        if not 0 < left <= _LONGEST:
            return False
        behind = self._plain.spelled(self._behind)
        self._behind.clear()
        others = self._others
        others.try_consume_tokens(behind)
        others.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if others.is_error():
            return False
        words |= self._plain.up_to(left)
        return True
