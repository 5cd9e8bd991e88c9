"""Compares every name of `tokenizer.ggml.pre` with llama.cpp on random texts.

    python -m tests.perf.pre_tokenizer_names --count 2000
    python -m tests.perf.pre_tokenizer_names --golden tests/golden/pre_tokenizer_names.json.gz

Needs llama-cpp-python. The second form writes the golden file of the suite: for each name the ids of a few
texts that no two rules split alike.
"""

import argparse
import gzip
import itertools
import json
import random
import sys
import tempfile
import unicodedata
from pathlib import Path

from engine.gguf.file import open_gguf
from engine.tokenizer.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from engine.tokenizer.tokenizer import Tokenizer
from tests.perf.tokenizer_fuzz import LlamaVocabulary
from tests.support.text_samples import WHOLE, random_text, write_bpe

JOINS_DIGITS = {"afmoe", "tiny_aya", "cohere2moe"}
"""Names for which llama.cpp joins digits to the text in front of them, which the models do not."""
_LATER_LETTERS = range(0x13430, 0x14400)
"""Hieroglyphs that are letters only in later versions of Unicode than the one that splits here."""


def texts_of(seed: int, count: int, name: str = "") -> list[str]:
    """Random texts without special tokens, and without digits for names that join them."""
    rng = random.Random(seed)
    texts = (random_text(rng, []) for _ in itertools.count())
    kept = (text for text in texts if not any(ord(char) in _LATER_LETTERS for char in text))
    if name in JOINS_DIGITS:
        kept = ("".join(c for c in text if unicodedata.category(c)[0] != "N") for text in kept)
    return list(itertools.islice(kept, count))


def telling_texts() -> list[str]:
    """A few texts of which at least one is split otherwise by any two rules."""
    rules = list(dict.fromkeys(PRE_TOKENIZERS.values()))
    candidates = texts_of(5, 600)
    with tempfile.TemporaryDirectory() as folder:
        encoders = [_encoder(Path(folder), rule) for rule in rules]
        found = [[tuple(encoder.encode(text)) for encoder in encoders] for text in candidates]
    alike = set(itertools.combinations(range(len(rules)), 2))
    chosen: list[str] = []
    while alike:
        told = [{pair for pair in alike if ids[pair[0]] != ids[pair[1]]} for ids in found]
        best = max(range(len(told)), key=lambda number: len(told[number]))
        if not told[best]:
            pairs = [(_name(rules[a]), _name(rules[b])) for a, b in alike]
            print("no text tells apart", pairs)
            break
        chosen.append(candidates[best])
        alike -= told[best]
    return chosen


def _name(rule: PreTokenizer) -> str:
    return next(name for name, found in PRE_TOKENIZERS.items() if found is rule)


def _encoder(folder: Path, rule: PreTokenizer) -> Tokenizer:
    return Tokenizer.from_gguf(open_gguf(write_bpe(folder / "v.gguf", _name(rule), whole=WHOLE)))


def compare(name: str, texts: list[str], folder: Path) -> list[list[int]]:
    """llama.cpp's ids; says what differs from ours."""
    path = write_bpe(folder / "v.gguf", name, whole=WHOLE)
    theirs, ours = LlamaVocabulary(path), Tokenizer.from_gguf(open_gguf(path))
    expected = [theirs.encode(text, False) for text in texts]
    theirs.close()
    different = [text for text, ids in zip(texts, expected, strict=True) if ours.encode(text) != ids]
    print(f"{name}: {len(texts)} texts, {len(different)} differ", *map(ascii, different[:3]), sep="\n  ")
    if different:
        sys.exit(1)
    return expected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--golden", type=Path)
    options = parser.parse_args()
    telling = telling_texts() if options.golden else []
    golden: dict[str, list[tuple[str, list[int]]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in sorted(PRE_TOKENIZERS):
            few = [text for text in telling if name not in JOINS_DIGITS or not any(map(str.isnumeric, text))]
            texts = few if options.golden else texts_of(options.seed, options.count, name)
            golden[name] = list(zip(texts, compare(name, texts, Path(folder)), strict=True))
    if options.golden:
        data = json.dumps(golden, ensure_ascii=False, separators=(",", ":")).encode()
        options.golden.write_bytes(gzip.compress(data, mtime=0))


if __name__ == "__main__":
    main()
