"""Streams of random tokens: incremental decoding equals decoding at once.

python -m tests.perf.detokenizer_fuzz --count 100000
"""

import argparse
import random
import tempfile
from pathlib import Path

from engine.gguf.file import open_gguf
from engine.tokenizer.detokenizer import Detokenizer
from engine.tokenizer.tokenizer import Tokenizer
from tests.support.text_samples import write_bpe, write_spm


def check_streams(tokenizer: Tokenizer, count: int, seed: int) -> None:
    """Random ids, some of them beyond the vocabulary, and some bytes of characters in order."""
    rng = random.Random(seed)
    texts = ["é你Ж😀👩‍👩‍👧 a", "naïve 한국어 emoji 🇩🇪!", "\u0e01\u0e33 ก็ </s>"]
    known = [tokenizer.encode(text) for text in texts]
    for _ in range(count):
        ids = [rng.randrange(tokenizer.vocab_size + 3) for _ in range(rng.randint(0, 12))]
        at = rng.randint(0, len(ids))
        ids[at:at] = rng.choice(known)[: rng.randint(0, 9)]
        detokenizer = Detokenizer(tokenizer)
        streamed = "".join(map(detokenizer.push, ids)) + detokenizer.flush()
        if streamed != tokenizer.decode(ids):
            raise AssertionError(f"{ids}: {streamed!r} streamed, {tokenizer.decode(ids)!r} at once")


def run(count: int, seed: int = 1) -> None:
    """Half of the streams per kind of vocabulary."""
    with tempfile.TemporaryDirectory() as folder:
        for write in (write_bpe, write_spm):
            path = Path(folder) / f"{write.__name__}.gguf"
            path = write_bpe(path, "qwen2") if write is write_bpe else write_spm(path)
            check_streams(Tokenizer.from_gguf(open_gguf(path)), count // 2, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    run(options.count, options.seed)
    print(f"{options.count} streams: equal")


if __name__ == "__main__":
    main()
