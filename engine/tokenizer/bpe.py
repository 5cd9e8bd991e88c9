"""Byte-level byte-pair encoding with the merges of a GGUF file."""

import threading
from collections.abc import Sequence

from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from engine.tokenizer.merging import merge_symbols, rank_of_merges
from engine.tokenizer.pretokenizers import PreTokenizer

LONG_TEXT = 1 << 16
"""From this many characters on the compiled model is used."""
_LONG_WORD = 32
_CACHE_SIZE = 1 << 16


def byte_alphabet() -> dict[int, str]:
    """Byte → the printable character that stands for it in byte-level vocabularies."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in table:
            table[byte] = chr(0x100 + len(table) - len(printable))
    return table


class BytePairEncoder:
    """Plain text → ids: split by the pre-tokenizer, then merge pairs by rank.

    Short texts are merged here, word by word, with a memory. For long ones the compiled model is
    built, once: building takes four tenths of a second for a large vocabulary and holds the
    interpreter meanwhile, which opening a model must not do. Both give the same ids.
    """

    def __init__(self, ids: dict[str, int], merges: Sequence[str], pre: PreTokenizer) -> None:
        """`ids`: the tokens that plain text may become; merges that lead elsewhere never apply."""
        self._ids = ids
        self._merges = merges
        self._ignore_merges = pre.ignore_merges
        self._rank = rank_of_merges(merges, ids)
        splits = [pre_tokenizers.Split(Regex(p), behavior="isolated") for p in pre.patterns]
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._pre_tokenizer = pre_tokenizers.Sequence([*splits, level])
        self._cache: dict[str, tuple[int, ...]] = {}
        self._fast: FastTokenizer | None = None
        self._building = threading.Lock()

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, which holds no special tokens and no lone surrogates."""
        if len(text) > LONG_TEXT:
            return self.encode_long(text)
        out: list[int] = []
        cache = self._cache
        for word, _ in self._pre_tokenizer.pre_tokenize_str(text):
            found = cache.get(word)
            out += self._encode_word(word) if found is None else found
        return out

    def encode_long(self, text: str) -> list[int]:
        """As `encode`, by the compiled model and without holding the interpreter."""
        with self._building:
            if self._fast is None:
                self._fast = self._compile()
        return self._fast.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def _encode_word(self, word: str) -> tuple[int, ...]:
        whole = self._ids.get(word) if self._ignore_merges else None
        if whole is not None:
            ids: tuple[int, ...] = (whole,)
        else:
            symbols = merge_symbols(word, self._rank)
            ids = tuple(token for symbol in symbols if (token := self._ids.get(symbol)) is not None)
        if len(word) <= _LONG_WORD:
            if len(self._cache) >= _CACHE_SIZE:
                self._cache.clear()
            self._cache[word] = ids
        return ids

    def _compile(self) -> FastTokenizer:
        distinct = dict.fromkeys(self._merges)
        pairs = [pair for merge in distinct if (pair := _pair(merge, self._ids))]
        fast = FastTokenizer(models.BPE(self._ids, pairs, ignore_merges=self._ignore_merges))
        fast.pre_tokenizer = self._pre_tokenizer
        return fast


def _pair(merge: str, ids: dict[str, int]) -> tuple[str, str] | None:
    left, _, right = merge.partition(" ")
    if left in ids and right in ids and left + right in ids:
        return left, right
    return None
