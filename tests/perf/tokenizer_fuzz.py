"""Compares our tokenizers with llama.cpp's on random texts.

    python -m tests.perf.tokenizer_fuzz --count 10000 --folder ../shared/data/tokenizers
    python -m tests.perf.tokenizer_fuzz --gemma4 --count 10000
    python -m tests.perf.tokenizer_fuzz --golden tests/golden/tokenizer_llama_cpp.json.gz
    python -m tests.perf.tokenizer_fuzz --gemma4 --golden tests/golden/tokenizer_gemma4.json.gz

Needs llama-cpp-python (any build; it only loads vocabularies). With `--golden` it writes the small golden
file that the suite checks without it.
"""

import argparse
import ctypes
import gzip
import json
import random
import sys
import tempfile
from pathlib import Path

from engine.gguf.file import open_gguf
from engine.tokenizer.pretokenizers import PRE_TOKENIZERS
from engine.tokenizer.tokenizer import Tokenizer
from tests.support.text_samples import random_text, write_bpe, write_gemma4, write_spm

_JOINS_DIGITS = {"afmoe", "tiny_aya"}
_EDGES = ("\t\t\u3000", "\u2029 ", "\u3000。", "a\u2003\u1680你", "\x85\v\u00a0 ")
"""Texts that are always among those compared: spaces beyond ASCII, which expressions may name in ranges."""


class LlamaVocabulary:
    """A vocabulary as llama.cpp reads it."""

    def __init__(self, path: Path) -> None:
        import llama_cpp

        self._api = llama_cpp
        self._quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
        llama_cpp.llama_log_set(self._quiet, None)
        parameters = llama_cpp.llama_model_default_params()
        parameters.vocab_only = True
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        self._vocabulary = llama_cpp.llama_model_get_vocab(self._model)

    def encode(self, text: str, special: bool) -> list[int]:
        data = text.encode()
        size = len(data) + 16
        buffer = (self._api.llama_token * size)()
        count = self._api.llama_tokenize(self._vocabulary, data, len(data), buffer, size, False, special)
        return list(buffer[:count])

    def eog(self) -> set[int]:
        api, count = self._api, self._api.llama_vocab_n_tokens(self._vocabulary)
        return {i for i in range(count) if api.llama_vocab_is_eog(self._vocabulary, i)}

    def close(self) -> None:
        self._api.llama_model_free(self._model)


def compare(path: Path, count: int, seed: int) -> list[tuple[bool, str, list[int]]]:
    """Encode `count` texts both ways; returns llama.cpp's cases, exits with 1 on a difference."""
    theirs, ours = LlamaVocabulary(path), Tokenizer.from_gguf(open_gguf(path))
    specials = list(ours.control_tokens)
    rng = random.Random(seed)
    cases: list[tuple[bool, str, list[int]]] = []
    differences = 0
    for number in range(count):
        text = _EDGES[number] if number < len(_EDGES) else random_text(rng, specials)
        special = number % 3 == 0
        expected, found = theirs.encode(text, special), ours.encode(text, special=special)
        cases.append((special, text, expected))
        if expected != found:
            differences += 1
            print(f"{path.name}: {text!r} special={special}\n  llama.cpp {expected}\n  ours      {found}")
    if ours.eog_ids != theirs.eog():
        differences += 1
        print(f"{path.name}: end of generation: {sorted(theirs.eog())} there, {sorted(ours.eog_ids)} here")
    theirs.close()
    print(f"{path.name}: {count} texts, {differences} differences")
    if differences:
        sys.exit(1)
    return cases


def write_golden(target: Path, count: int) -> None:
    """One name of each splitting rule, and SentencePiece with and without inner spaces."""
    families = {rule: name for name, rule in reversed(PRE_TOKENIZERS.items())}
    golden: dict[str, dict[str, list[tuple[bool, str, list[int]]]]] = {"bpe": {}, "spm": {}}
    with tempfile.TemporaryDirectory() as folder:
        for seed, name in enumerate(sorted(set(families.values()) - _JOINS_DIGITS)):
            golden["bpe"][name] = compare(write_bpe(Path(folder) / f"{name}.gguf", name), count, seed)
        for inner in (False, True):
            path = write_spm(Path(folder) / f"spm-{inner}.gguf", inner_space=inner)
            golden["spm"][str(inner)] = compare(path, 4 * count, 99)
    _write(target, golden)


def compare_gemma4(count: int, seed: int, target: Path | None) -> None:
    """Vocabularies of type `gemma4`, with and without tokens that hold a space inside."""
    golden = {}
    with tempfile.TemporaryDirectory() as folder:
        for inner in (False, True):
            path = write_gemma4(Path(folder) / f"gemma4-{inner}.gguf", inner_space=inner)
            golden[str(inner)] = compare(path, count, seed)
    if target is not None:
        _write(target, golden)


def _write(target: Path, golden: object) -> None:
    data = json.dumps(golden, ensure_ascii=False, separators=(",", ":")).encode()
    target.write_bytes(gzip.compress(data, mtime=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("../shared/data/tokenizers"))
    parser.add_argument("--golden", type=Path)
    parser.add_argument("--gemma4", action="store_true")
    options = parser.parse_args()
    if options.gemma4:
        count = min(options.count, 120) if options.golden else options.count
        compare_gemma4(count, options.seed, options.golden)
        return
    if options.golden:
        write_golden(options.golden, min(options.count, 30))
        return
    for path in sorted(options.folder.glob("*.gguf")):
        compare(path, options.count, options.seed)


if __name__ == "__main__":
    main()
