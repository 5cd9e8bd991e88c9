"""Token ids against llama.cpp's, and files that lie about their tokenizer."""

import gzip
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from engine.api.errors import TokenizerError
from engine.gguf.file import open_gguf
from engine.tokenizer.bpe import BytePairEncoder
from engine.tokenizer.pretokenizers import NOT_BYTE_LEVEL, PRE_TOKENIZERS
from engine.tokenizer.tokenizer import Tokenizer, _bpe_encoder
from engine.tokenizer.vocabulary import read_vocabulary
from tests.support.text_samples import WHOLE, write_bpe, write_spm

GOLDEN = Path(__file__).parents[2] / "golden" / "tokenizer_llama_cpp.json.gz"
NAME_CASES = json.loads(gzip.decompress(GOLDEN.with_name("pre_tokenizer_names.json.gz").read_bytes()))
SHARED = Path(__file__).parents[4] / "shared" / "data" / "tokenizers"
BPE_CASES, SPM_CASES = (json.loads(gzip.decompress(GOLDEN.read_bytes()))[kind] for kind in ("bpe", "spm"))


class Fake:
    """A file's metadata as plain data."""

    path = Path("fake.gguf")

    def __init__(self, **values):
        self.values = {f"tokenizer.ggml.{key}": value for key, value in values.items()}

    def _get(self, key, default=None):
        return self.values.get(key, default)

    string = integer = boolean = _get

    def strings(self, key):
        return self.values.get(key, [])

    def numbers(self, key):
        return np.array(self.values.get(key, []))


def bpe_fake(**changes):
    tokens = ["a", "b", "ab", "<|im_end|>"]
    return Fake(**{"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "token_type": [1, 1, 1, 3],
                   "merges": ["a b"], **changes})  # fmt: skip


def spm_fake(**changes):
    tokens = ["<unk>", "<s>", "</s>", "▁", "a"]
    return Fake(**{"model": "llama", "tokens": tokens, "token_type": [2, 3, 3, 1, 1],
                   "scores": [0.0, 0.0, 0.0, -1.0, -2.0], **changes})  # fmt: skip


@pytest.mark.parametrize("pre", sorted(BPE_CASES))
def test_bpe_ids_equal_llama_cpp(pre, tmp_path):
    tokenizer = Tokenizer.from_gguf(open_gguf(write_bpe(tmp_path / "v.gguf", pre)))
    assert tokenizer.warning is None
    for special, text, ids in BPE_CASES[pre]:
        assert tokenizer.encode(text, special=special) == ids, text


@pytest.mark.parametrize("inner", sorted(SPM_CASES))
def test_spm_ids_equal_llama_cpp(inner, tmp_path):
    tokenizer = Tokenizer.from_gguf(open_gguf(write_spm(tmp_path / "v.gguf", inner_space=inner == "True")))
    for special, text, ids in SPM_CASES[inner]:
        assert tokenizer.encode(text, special=special) == ids, text


def test_every_name_splits_as_llama_cpp_does(tmp_path):
    file = open_gguf(write_bpe(tmp_path / "v.gguf", "gpt-2", whole=WHOLE))
    vocabulary = read_vocabulary(file, "gpt2")
    assert NAME_CASES.keys() == PRE_TOKENIZERS.keys()
    encoders = {pre: _bpe_encoder(file, vocabulary, pre) for pre in dict.fromkeys(PRE_TOKENIZERS.values())}
    for name, cases in NAME_CASES.items():
        for text, ids in cases:
            assert encoders[PRE_TOKENIZERS[name]].encode(text) == ids, (name, text)


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("afmoe", "in 1234567", ["in", " ", "1", "234", "567"]),
        ("tiny_aya", "in 1234567.", ["in", " ", "1", "234", "567", "."]),
        ("tiny_aya", "1234px", ["123", "4", "px"]),
    ],
)
def test_digits_are_grouped_as_the_models_do(name, text, pieces):
    encoder = BytePairEncoder({}, [], PRE_TOKENIZERS[name])
    found = encoder._pre_tokenizer.pre_tokenize_str(text)
    assert [word.replace("Ġ", " ") for word, _ in found] == pieces


@pytest.mark.parametrize("name", sorted(NOT_BYTE_LEVEL))
def test_vocabularies_that_merge_characters_are_refused_where_bytes_are_merged(name):
    with pytest.raises(TokenizerError, match=name):
        Tokenizer.from_gguf(bpe_fake(pre=name))


def test_every_splitting_rule_compiles():
    for pre in set(PRE_TOKENIZERS.values()):
        assert BytePairEncoder({"a": 0}, [], pre).encode("a a1\n") == [0, 0]


@cache
def shared(name):
    path = SHARED / f"ggml-vocab-{name}.gguf"
    if not path.exists():
        pytest.skip("the shared vocabularies are not here")
    return Tokenizer.from_gguf(open_gguf(path))


@pytest.mark.parametrize("name", ["llama-bpe", "qwen2", "llama-spm", "gpt-2", "phi-3"])
def test_ids_equal_published_cases(name):
    tokenizer = shared(name)
    stem = SHARED / f"ggml-vocab-{name}.gguf"
    texts = Path(f"{stem}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = Path(f"{stem}.out").read_text().split("\n")
    assert len(texts) >= 40
    for text, line in zip(texts, lines, strict=True):
        assert tokenizer.encode(text) == [int(number) for number in line.split()], text


def test_long_and_short_texts_merge_alike(tmp_path):
    tokenizer = Tokenizer.from_gguf(open_gguf(write_bpe(tmp_path / "v.gguf", "llama-bpe")))
    for _, text, _ in BPE_CASES["llama3"]:
        assert tokenizer._encoder.encode_long(text) == tokenizer._encoder.encode(text), text


def test_first_of_equal_merges_counts_in_both_ways():
    ids = {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4}
    encoder = BytePairEncoder(ids, ["b c", "a b", "b c"], PRE_TOKENIZERS["gpt-2"])
    assert encoder.encode("abc") == encoder.encode_long("abc") == [0, 4]


def test_plain_text_never_becomes_a_control_token(tmp_path):
    for path in (
        write_bpe(tmp_path / "b.gguf", "qwen2"),
        write_spm(tmp_path / "s.gguf", reachable_controls=True),
    ):
        tokenizer = Tokenizer.from_gguf(open_gguf(path))
        for text in (*tokenizer.control_tokens, "a </s> <s>", "<|im_start|>system\n<|im_end|>"):
            assert not any(map(tokenizer.is_control, tokenizer.encode(text))), text
            ids = tokenizer.encode_content(text)
            assert not set(ids) & set(tokenizer.control_tokens.values()), text
            assert tokenizer.decode(ids) == text
            if text in tokenizer.control_tokens:
                assert tokenizer.control_tokens[text] in tokenizer.encode(text, special=True)


def test_user_defined_tokens_in_contents():
    texts = ["a", "<", "b", "<table>", "<tool>", "t", "o", "l", ">", "  "]
    tokenizer = Tokenizer.from_gguf(
        bpe_fake(tokens=texts, token_type=[1, 4, 1, 4, 4, 1, 1, 1, 1, 4], merges=["a b"])
    )
    assert tokenizer.encode("a<table><tool>") == [0, 3, 4]
    assert tokenizer.encode_content("a<table>  <b") == [0, 3, 9, 1, 2]
    assert 4 not in tokenizer.encode_content("<tool>") and set(tokenizer.control_tokens) == {"<tool>"}


def test_space_prefix_follows_special_tokens(tmp_path):
    tokenizer = Tokenizer.from_gguf(open_gguf(write_spm(tmp_path / "s.gguf")))
    space = tokenizer.encode("a")
    assert tokenizer.encode("a", first=False) != space
    assert tokenizer.encode("<s>a", special=True) == [1, *space]
    assert tokenizer.decode(space) == "a" and tokenizer.decode([1, *space]) == " a"


def test_lone_surrogates_become_question_marks(tmp_path):
    tokenizer = Tokenizer.from_gguf(open_gguf(write_bpe(tmp_path / "b.gguf", "qwen2")))
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a?b"


def test_unknown_pre_tokenizer_is_said(tmp_path):
    named = Tokenizer.from_gguf(open_gguf(write_bpe(tmp_path / "a.gguf", "nobody-knows")))
    assert named.warning and "nobody-knows" in named.warning
    missing = Tokenizer.from_gguf(open_gguf(write_bpe(tmp_path / "b.gguf", None)))
    assert missing.warning and "names no pre-tokenizer" in missing.warning


def test_phi3_special_tokens_swallow_space(tmp_path):
    fake = bpe_fake()
    fake.values["general.name"] = "My Phi-3 model"
    tokenizer = Tokenizer.from_gguf(fake)
    assert tokenizer.encode("<|im_end|> \n ab", special=True) == [3, 2]


def test_end_of_generation_set():
    texts = ["<|end|>", "<|return|>", "<|call|>", "<|im_end|>", "<|fim_pad|>", "<|channel|>", "a", "x"]
    fake = bpe_fake(tokens=texts, token_type=[1, 3, 3, 1, 3, 3, 1, 1], merges=["a x"], eos_token_id=7)
    tokenizer = Tokenizer.from_gguf(fake)
    assert tokenizer.eog_ids == {1, 2, 3, 4, 7}
    assert tokenizer.is_control(3) and not tokenizer.is_control(5)
    assert tokenizer.decode([0, 5]) == "<|end|><|channel|>"


def test_what_ends_one_of_several_messages_ends_no_answer():
    texts = ["<|eom|>", "<|eot|>", "<|start|>", "<|message|>", "a", "x"]
    fake = bpe_fake(tokens=texts, token_type=[3, 3, 3, 3, 1, 1], merges=["a x"], eot_token_id=1)
    assert Tokenizer.from_gguf(fake).eog_ids == {1}


def test_tokens_that_part_an_answer_are_markers_where_no_text_gives_them():
    texts = ["<think>", "</think>", "[THINK]", "<|call|>", "a", "x"]
    fake = bpe_fake(tokens=texts, token_type=[4, 3, 1, 3, 1, 1], merges=["a x"])
    tokenizer = Tokenizer.from_gguf(fake)
    assert tokenizer.markers == {0: "<think>", 1: "</think>"}
    assert tokenizer.decode([0, 4, 1, 5]) == "<think>ax"


@pytest.mark.parametrize(
    ("fake", "named"),
    [
        (Fake(), "tokenizer.ggml.model"),
        (Fake(model="none"), "no tokenizer"),
        (Fake(model="bert"), "'bert'"),
        (Fake(model="rwkv"), "gpt2"),
        (bpe_fake(tokens=[]), "tokens"),
        (bpe_fake(tokens=["a", "b", "a"]), "twice"),
        (bpe_fake(token_type=[1, 1]), "token_type"),
        (bpe_fake(merges=[]), "merges"),
        (spm_fake(scores=[0.0]), "scores"),
        (spm_fake(scores=[0.0, float("nan"), 0.0, 0.0, 0.0]), "scores"),
    ],
)
def test_broken_metadata_is_refused_by_name(fake, named):
    with pytest.raises(TokenizerError, match=named):
        Tokenizer.from_gguf(fake)


def test_malformed_entries_are_survived():
    tokenizer = Tokenizer.from_gguf(
        bpe_fake(
            merges=["a b", "", " ", "ab", "a  b", "zz yy", "a b c"],
            tokens=["a", "b", "ab", ""],
            token_type=[1, 1, 99, -5],
            eos_token_id=10**9,
            bos_token_id=-1,
        )
    )
    assert tokenizer.encode("abzb") == [2, 1] and tokenizer.eos_id is None and tokenizer.bos_id is None
    assert tokenizer.decode([0, 99, -7, 1]) == "ab"
    assert tokenizer._encoder.encode_long("ab") == tokenizer.encode("ab")
    assert Tokenizer.from_gguf(spm_fake()).encode("aé") == [3, 4, 0, 0]
