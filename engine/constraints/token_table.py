"""A vocabulary as grammars need it: the bytes of each token, and which tokens no text can spell."""

from copy import copy
from typing import TYPE_CHECKING

from engine.api.errors import RequestError
from engine.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_NO_TEXT = b"\xff"
"""In front of a token's name: grammars reach it by its id alone."""


class Vocabulary:
    """What llguidance asks of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        """A few seconds for a large one; raises `RequestError` for one in which no answer ends."""
        if not tokenizer.eog_ids:
            raise RequestError(
                "constraint: the model has no token that ends an answer, so that none can be held to a "
                "constraint"
            )
        self._tokenizer = tokenizer
        self._ends = sorted(tokenizer.eog_ids)
        self.eos_token_id = min(tokenizer.eog_ids)
        guarded = frozenset(tokenizer.control_tokens.values()) | tokenizer.eog_ids
        self.special_token_ids = sorted(guarded)
        self.tokens = [
            _NO_TEXT + tokenizer.token_text(token_id).encode()
            if token_id in guarded
            # Beyond the tokenizer's own there are none: no bytes, so no grammar allows them.
            else tokenizer.token_bytes(token_id)
            for token_id in range(size)
        ]

    def __call__(self, text: str | bytes) -> list[int]:
        """Tokens as the model would write them inside a text."""
        plain = text if isinstance(text, str) else text.decode("utf-8", "replace")
        return self._tokenizer.encode(plain, first=False)

    def table(self, tokens: list[bytes] | None = None) -> "LLTokenizer":
        """What grammars read; tokens: other bytes of the same ids, none for one that cannot come."""
        from llguidance import LLTokenizer

        vocabulary = self if tokens is None else copy(self)
        if tokens is not None:
            vocabulary.tokens = tokens
        return LLTokenizer(vocabulary, eos_token=self._ends)  # type: ignore[arg-type]
