"""Token ids → text, one at a time."""

import codecs

from engine.tokenizer.tokenizer import Tokenizer


class Detokenizer:
    """Incremental decoding of one answer: the pieces joined equal `Tokenizer.decode` of all ids.

    A character whose bytes are spread over several tokens comes out with its last byte.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._started = False

    def push(self, token_id: int) -> str:
        """The text that this token completes, often "" within a character."""
        piece = self._tokenizer.token_bytes(token_id)
        if not self._started:
            piece = self._tokenizer.strip_first(piece)
            self._started = True
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """What is left at the end: U+FFFD for an unfinished character, else ""."""
        return self._decoder.decode(b"", final=True)
