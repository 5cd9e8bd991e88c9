"""Token ids → text, one at a time."""

import codecs
from collections.abc import Sequence

from engine.api.request import TextDelta
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

    @property
    def pending(self) -> bool:
        """Whether an unfinished character is held back."""
        return bool(self._decoder.getstate()[0])


def replayed(tokenizer: Tokenizer, ids: Sequence[int]) -> list[TextDelta]:
    """An answer's stream once more, from its ids; the end of an unfinished character is left out."""
    detokenizer = Detokenizer(tokenizer)
    deltas: list[TextDelta] = []
    whole = 0
    for token_id in ids:
        marker = tokenizer.markers.get(token_id, "")
        if marker and detokenizer.pending:
            deltas.append(TextDelta(detokenizer.flush(), ()))
        deltas.append(TextDelta(detokenizer.push(token_id), (token_id,), marker))
        if not detokenizer.pending:
            whole = len(deltas)
    return deltas[:whole]
