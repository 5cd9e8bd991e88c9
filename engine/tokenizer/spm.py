"""Encoding with vocabularies that write a space as ▁: neighbouring symbols merge, the best pair first.

What is best is SentencePiece's score of the joint text (not the Unigram model: any two neighbours whose
joint text is a token may merge), or the rank of a merge that the file lists. Equal ones go from left to
right.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from engine.tokenizer.merging import PairRank, merge_symbols, rank_of_merges

SPACE = "▁"
_LONG = 24
_CACHE_SIZE = 1 << 16
_LINES = re.compile(r"[^\n]+|\n+")


class SentencePieceEncoder:
    """Plain text, its spaces already written as ▁, → ids.

    Text is cut wherever no token holds the two characters beside the cut: nothing can merge across
    it, so the pieces are encoded apart, exactly, and remembered.
    """

    def __init__(self, ids: Mapping[str, int], rank: PairRank, byte_ids: Sequence[int]) -> None:
        """`ids`: tokens that plain text may become; `byte_ids` [256]: fallback per byte, -1 for none.

        rank: of pairs whose joint text is one of `ids`, and of no others.
        """
        self._ids = ids
        self._rank = rank
        self._byte_ids = byte_ids
        self._inner_space = any(SPACE in text.lstrip(SPACE) for text in ids)
        self._pairs: frozenset[int] | None = None
        self._cache: dict[str, tuple[int, ...]] = {}

    def encode(self, text: str) -> list[int]:
        """Ids of `text`."""
        out: list[int] = []
        cache = self._cache
        for word in self._words(text):
            found = cache.get(word)
            out += self._encode_word(word) if found is None else found
        return out

    def _words(self, text: str) -> list[str]:
        if self._inner_space:
            return [text]
        head, *rest = text.split(SPACE)
        words = [head] if head else []
        run = ""
        for part in rest:
            run += SPACE
            if part:
                words.append(run + part)
                run = ""
        if run:
            words.append(run)
        return words

    def _encode_word(self, word: str) -> Sequence[int]:
        if len(word) <= _LONG:
            ids = tuple(self._merge(word))
            if len(self._cache) >= _CACHE_SIZE:
                self._cache.clear()
            self._cache[word] = ids
            return ids
        out: list[int] = []
        for piece in self._pieces(word):
            found = self._cache.get(piece) if len(piece) <= _LONG else None
            if found is None:
                found = tuple(self._merge(piece))
                if len(piece) <= _LONG and len(self._cache) < _CACHE_SIZE:
                    self._cache[piece] = found
            out += found
        return out

    def _pieces(self, word: str) -> list[str]:
        if self._pairs is None:
            self._pairs = _neighbours(self._ids)
        code = np.frombuffer(word.encode("utf-32-le"), np.uint32).astype(np.uint64)
        keys = (code[:-1] << np.uint64(32) | code[1:]).tolist()
        pairs = self._pairs
        cuts = [i for i, key in enumerate(keys, 1) if key not in pairs]
        return [word[a:b] for a, b in zip([0, *cuts], [*cuts, len(word)], strict=True)]

    def _merge(self, word: str) -> list[int]:
        return self._to_ids(merge_symbols(word, self._rank))

    def _to_ids(self, symbols: list[str]) -> list[int]:
        out: list[int] = []
        for symbol in symbols:
            token = self._ids.get(symbol)
            if token is not None:
                out.append(token)
            else:
                out += [i for byte in symbol.encode() if (i := self._byte_ids[byte]) >= 0]
        return out


class CharacterPairEncoder:
    """Byte-pair encoding on characters, their spaces already written as ▁: merges by rank inside a line.

    Newlines in a row are the token that they are as a whole, where the vocabulary has it.
    """

    def __init__(self, ids: Mapping[str, int], merges: Sequence[str], byte_ids: Sequence[int]) -> None:
        """`ids` and `byte_ids` as of `SentencePieceEncoder`; merges that lead elsewhere never apply."""
        self._ids = ids
        self._lines = SentencePieceEncoder(ids, rank_of_merges(merges, ids), byte_ids)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`."""
        out: list[int] = []
        for run in _LINES.findall(text):
            whole = self._ids.get(run) if run[0] == "\n" else None
            out += self._lines.encode(run) if whole is None else [whole]
        return out


def rank_of_scores(ids: Mapping[str, int], scores: Sequence[float]) -> PairRank:
    """The highest score of a joint text first."""

    def rank(left: str, right: str) -> float | None:
        token = ids.get(left + right)
        return None if token is None else -scores[token]

    return rank


def _neighbours(ids: Mapping[str, int]) -> frozenset[int]:
    """Every two characters that stand side by side in a token, as first << 32 | second."""
    joined = "\0".join(ids)
    code = np.frombuffer(joined.encode("utf-32-le", "replace"), np.uint32).astype(np.uint64)
    return frozenset(np.unique(code[:-1] << np.uint64(32) | code[1:]).tolist())
