"""Byte-level byte-pair encoding with the merges of a GGUF file."""

from collections.abc import Sequence

from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from engine.text.pretokenizers import PreTokenizer


def byte_alphabet() -> dict[int, str]:
    """Byte → the printable character that stands for it in byte-level vocabularies."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in table:
            table[byte] = chr(0x100 + len(table) - len(printable))
    return table


class BytePairEncoder:
    """Plain text → ids: split by the pre-tokenizer, then merge pairs by rank."""

    def __init__(self, ids: dict[str, int], merges: Sequence[str], pre: PreTokenizer) -> None:
        """`ids`: the tokens that plain text may become; merges that lead elsewhere are left out."""
        pairs = [pair for merge in merges if (pair := _pair(merge, ids))]
        model = models.BPE(ids, pairs, ignore_merges=pre.ignore_merges)
        self._fast = FastTokenizer(model)
        splits = [pre_tokenizers.Split(Regex(p), behavior="isolated") for p in pre.patterns]
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._fast.pre_tokenizer = pre_tokenizers.Sequence([*splits, level])

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, which holds no special tokens and no lone surrogates."""
        return self._fast.encode(text, add_special_tokens=False).ids


def _pair(merge: str, ids: dict[str, int]) -> tuple[str, str] | None:
    left, _, right = merge.partition(" ")
    if left in ids and right in ids and left + right in ids:
        return left, right
    return None
